"""Who has noisy labels: statistics on what clients report of their losses per class. Pure numpy and scipy."""
