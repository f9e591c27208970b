"""Layers: what runs a model's decoder layers and the products in them.

Our own C++ on a CPU, few kernels on a GPU, a compiler's code, or transformers' own (:mod:`.code` chooses).
"""
