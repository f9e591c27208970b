"""Parts of training a head; ``train.py`` combines them."""
