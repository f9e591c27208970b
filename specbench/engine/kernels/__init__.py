"""Triton kernels of the engine's step. Modules are imported only on a device that can run them.

A kernel equals the torch code that it replaces: ``ops``, ``sampler`` and ``cache`` define what a step computes, and the
tests compare kernels with them in Triton's interpreter. Kernels read everything that a step's shape does not determine
(lengths, counts, positions, seed, temperature) on the device, so that one CUDA graph serves every step of that shape.
"""
