"""Run programs that a model wrote, confined, and compare what they return."""
