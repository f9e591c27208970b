"""Evaluations of weights in training on held-out texts."""
