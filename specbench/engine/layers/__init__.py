"""Implementations of a model's decoder layers and of their matrix products.

Our own C++ on a CPU, a few Triton kernels on a GPU, torch.compile, or transformers' own code (:mod:`.code` chooses).
"""
