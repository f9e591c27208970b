"""Trees from a head that scores several positions at once: per-depth top-k marginals in, a tree within a budget out.

A parallel draft head gives every position its own distribution, whatever was chosen before it, so all parents of a
depth share one list of candidates and a path's probability is the product of its tokens'. What is left to decide is
which of the many paths are worth a row of the target's forward. Every builder here answers with its own order, best
first; :mod:`.builders` has them by name.

A budget counts **rows of the target's forward, the root included**, everywhere. The papers count otherwise:

========================  =================  ===================  ===================
source                    its budget         rows of its forward  here
========================  =================  ===================  ===================
JetSpec, ``budget``       B, with the root   B                    ``budget=B``
DDTree, ``budget``        B, without it      B + 1                ``budget=B + 1``
EAGLE, ``total_token``    B, with the root   B (B - 1 drafts)     ``budget=B``
DFlash, ``block_size``    B, with the root   B (B - 1 drafts)     ``chain``, ``budget=B``
========================  =================  ===================  ===================
"""
