"""Which parallel decoder is fastest for a model, a task and a GPU, by how much, and is its text still right."""

__version__ = "0.1.0"
