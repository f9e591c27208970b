"""What is learnt: teachers, losses, and the batches that they read."""
