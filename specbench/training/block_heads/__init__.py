"""Training of heads that draft a block in one pass: blocks sampled from texts, and their attention."""
