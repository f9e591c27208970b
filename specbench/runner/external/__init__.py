"""Rows of other engines in a run."""
