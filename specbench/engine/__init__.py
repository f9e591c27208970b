"""The token-tree engine: one forward, one mask, one acceptance rule and one KV commit for every decoder.

Import from the submodules; this file imports nothing, so that ``specbench.engine.tree`` stays free of torch.
"""
