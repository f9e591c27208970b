"""Answers token by token: steps, states, rounds and races."""
