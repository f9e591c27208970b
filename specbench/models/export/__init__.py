"""Export: a model's weights in the files that other engines read, so that they are measured on the same numbers."""
