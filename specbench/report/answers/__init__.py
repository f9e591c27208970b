"""Show answers token by token: steps, states, rounds and races."""
