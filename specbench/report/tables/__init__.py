"""What commands and pages show, as format-independent tables and sentences."""
