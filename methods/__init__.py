"""The decoding methods, a folder each. Imported as ``specbench.methods`` through the link ``specbench/methods``."""

if __name__ != "specbench.methods":  # a second copy of each class, under another name, would fail isinstance silently
    raise ImportError(
        "import specbench.methods, not methods: this folder is reached through the link specbench/methods"
    )
