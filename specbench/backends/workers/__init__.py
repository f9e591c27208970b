"""Engines that run in a process and an environment of their own."""
