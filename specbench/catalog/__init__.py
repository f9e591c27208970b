"""Names of models: aliases with their recommended settings, and configurations for dummy weights. Data, no code."""

#: Between the caveats of a row: its table's first, then its own.
BETWEEN = "; "
