"""What people see of a run. Reads records only; no torch."""
