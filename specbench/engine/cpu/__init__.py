"""The step on a CPU: decoder layers and the LM head as code of ours, one call each.

``layer.cpp`` and the headers beside it are compiled on the machine that runs them (:mod:`specbench.common.native`);
``library`` is their seam to Python, ``layers`` finds out which models go through them and switches these over.
"""
