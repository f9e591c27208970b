"""The training loop, its order of texts, checkpoints, cost and stopping rule."""
