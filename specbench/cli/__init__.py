"""The command line: typer commands, a file each. Data to stdout, progress and errors to stderr; nothing ever asks."""
