"""Tables: what commands and pages show, as one object that every format is rendered from."""
