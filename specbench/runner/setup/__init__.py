"""Prepare a session before its first timed step."""
