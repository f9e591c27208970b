"""How the rows of a step attend to the cache and to their ancestors.

The ``reference`` backend uses a dense mask with torch's SDPA. A faster backend must equal it before it is timed.
transformers calls :func:`specbench.engine.attention.interface.attend`, which calls the step's backend.
"""
