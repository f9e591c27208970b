"""Renderers: terminal, HTML, Markdown and CSV of the same document."""
