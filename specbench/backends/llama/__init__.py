"""Rows of llama.cpp's server, started here or by URL."""
