"""Parts of training heads; ``train.py`` combines them."""
