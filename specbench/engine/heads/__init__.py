"""Draft heads in the engine: the passes of a small model that drafts."""
