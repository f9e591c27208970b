"""Benchmarks: programs beside specbench that time it. A package, so that no other of this name is taken for it."""
