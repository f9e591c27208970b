"""Decoder layers that run by code of our own: C++ on a CPU, Triton's kernels on a GPU."""
