"""The first files of a new method: templates, and what fills them in. No torch."""
