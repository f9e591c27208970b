"""Sandbox: where programs that a model wrote run, and the comparison of what they return."""
