"""Attention backends: how the rows of a step attend to the cache and to their ancestors.

The ``reference`` backend is the oracle: a dense mask through torch's SDPA. A faster one must equal it before it is
timed. transformers calls :func:`specbench.engine.attention.interface.attend`, which hands over to the step's backend.
"""
