"""Triton kernels of the engine's step. Each module stands alone and is imported where a device is to run it.

A kernel equals the torch code that it replaces: ``ops``, ``sampler`` and ``cache`` stay the statement of what a step
does, and the tests compare against them in Triton's interpreter. What a step's shape does not fix (lengths, counts,
positions, seed, temperature) is read on the device, so that one CUDA graph serves every step of that shape.
"""
