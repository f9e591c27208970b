"""Check correctness and speed of a GPU with one command, ``make gpu-check``, on a machine without a network.

Importing this package makes the packages of a bundle importable, in every process of the check.
"""

from benchmarks.gpu_check import vendor

vendor.use()
