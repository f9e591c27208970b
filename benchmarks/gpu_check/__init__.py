"""GPU check: every figure of a GPU from one command, ``make gpu-check``, on a machine without a network.

Importing it puts the packages that came in a bundle within reach, in every process of the check.
"""

from benchmarks.gpu_check import vendor

vendor.use()
