"""Charts: every picture, in one style."""
