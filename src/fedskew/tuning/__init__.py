"""Sweeps: what is tried, and which of it is chosen."""
