"""What a model's step costs on the device at hand, measured: ``specbench profile``."""
