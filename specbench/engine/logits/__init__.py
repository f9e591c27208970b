"""What changes logits before a token is chosen: a grammar, a bias, penalties and min-p."""
