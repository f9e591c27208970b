"""Run decoder layers and the LM head on a CPU with our own C++.

``layer.cpp`` and its headers are compiled on the machine that runs them (:mod:`specbench.common.native`). ``library``
is their Python interface; :mod:`specbench.engine.layers.cpu_layers` decides which models use them.
"""
