"""Training of what methods draft with: prompts, the target's own answers to them, and the recipes of the methods."""
