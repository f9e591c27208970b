"""Engines that only the user starts, as servers by URL."""
