"""Published speedups, what they are worth, and which of them a run repeats."""
