"""Build token trees within a row budget from a parallel draft head's scores: the top-k tokens of each depth.

A parallel draft head gives every position a distribution that does not depend on the tokens chosen before it. So all
parents at a depth share one list of candidates, and a path's probability is the product of its tokens' probabilities.
Builders differ in the order in which they add paths to the tree; :mod:`.builders` has them by name.

A budget counts **rows of the target's forward, root included**, everywhere. The papers count differently:

========================  =================  ===================  ===================
source                    its budget         rows of its forward  here
========================  =================  ===================  ===================
JetSpec, ``budget``       B, with the root   B                    ``budget=B``
DDTree, ``budget``        B, without it      B + 1                ``budget=B + 1``
EAGLE, ``total_token``    B, with the root   B (B - 1 drafts)     ``budget=B``
DFlash, ``block_size``    B, with the root   B (B - 1 drafts)     ``chain``, ``budget=B``
========================  =================  ===================  ===================
"""
