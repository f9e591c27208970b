"""How the tokens of a request came: its trace, the trees of its forwards, and the states of its answer."""
