"""Known data sets: where they are, how they are fetched, checked, and read."""
