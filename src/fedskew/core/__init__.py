"""Nouns, arithmetic, randomness, errors, and the one writer of files."""
