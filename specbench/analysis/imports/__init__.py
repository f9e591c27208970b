"""Figures of imported results, and their comparison with runs."""
