"""Render a document for the terminal and as HTML, Markdown and CSV."""
