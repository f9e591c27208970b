"""How it is learnt: the training loop, its order, checkpoints, cost and stopping rule."""
