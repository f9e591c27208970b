"""Terminal: what each command prints of a run, a sweep, a profile or a generation."""
