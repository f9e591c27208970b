"""Write a model's weights in the formats of other engines, so that all engines are measured on the same weights."""
