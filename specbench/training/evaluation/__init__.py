"""How well it is learnt: evaluations on held-out texts."""
