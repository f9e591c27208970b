"""Grade answers in worker processes."""
