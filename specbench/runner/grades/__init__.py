"""Grade a run after its decoding: exactness, likelihoods, branches, verdicts."""
