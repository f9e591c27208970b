"""Results that another tool measured: their schema, their folder, and a reader for each tool's files."""
