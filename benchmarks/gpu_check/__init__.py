"""``make gpu-check``: what anyone who gets a GPU runs first. Correctness, then the figures of the device."""
