"""Training data: prompts, answers, and Jacobi states of answers."""
