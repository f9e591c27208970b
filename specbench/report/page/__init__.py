"""The report: a document of tables and figures, made once and written as HTML, Markdown and CSV."""
