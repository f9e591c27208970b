"""The command line: typer commands, a file each. Data go to stdout, progress and errors to stderr; nothing ever asks."""
