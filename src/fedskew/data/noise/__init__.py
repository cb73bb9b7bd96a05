"""Label noise: which clients are noisy, and how their labels change. Pure numpy."""
