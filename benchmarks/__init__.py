"""Programs that measure specbench itself. A package, so that Python does not import another module of this name."""
