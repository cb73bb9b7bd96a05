"""The run folder, its lock, and its record, written and read without torch."""
