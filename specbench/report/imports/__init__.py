"""Tables of imported results, and of their comparison with runs."""
