"""A model rates the answers of a run, as FastChat's MT-Bench does: prompts, judges, ratings, and their files."""
