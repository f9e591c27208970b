"""Grading of answers in worker processes."""
