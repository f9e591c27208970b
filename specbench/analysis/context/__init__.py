"""Figures over a growing context: prompts by length, and the chained problems of a session."""
