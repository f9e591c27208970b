"""Names of models: aliases with their recommended settings, and configurations for dummy weights. Data, no code."""
