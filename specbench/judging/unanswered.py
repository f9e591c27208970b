"""What a judge raises for the one answer it cannot rate."""

from __future__ import annotations


class Unanswered(Exception):
    """The judge refuses this one prompt; others may go through."""
