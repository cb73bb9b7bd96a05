"""Scores of predictions with intervals, in numpy and scikit-learn; no torch."""
