"""A Flower app whose clients see few classes."""
