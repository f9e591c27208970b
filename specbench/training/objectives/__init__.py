"""Training objectives: teachers, losses, and the batches that they read."""
