"""What training a head is made of; ``train.py`` puts it together."""
