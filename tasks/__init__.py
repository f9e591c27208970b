"""The tasks, a folder each. Imported as ``specbench.tasks`` through the link ``specbench/tasks``."""

if __name__ != "specbench.tasks":  # a second copy of each class, under another name, would fail isinstance silently
    raise ImportError("import specbench.tasks, not tasks: this folder is reached through the link specbench/tasks")
