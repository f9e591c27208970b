"""Output of documents: terminal, HTML, Markdown and CSV."""
