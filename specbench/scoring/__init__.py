"""Verdicts on generated text, in processes that never import torch (DESIGN §3, §9)."""
