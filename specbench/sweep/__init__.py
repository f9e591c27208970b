"""Sweeps: settings of methods as a grid, measured beside each other on the same prompts."""
