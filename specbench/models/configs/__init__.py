"""Configurations: shapes with names (``config:NAME``), and layouts that transformers does not know."""
