"""Make network inputs out of what tables and texts hold, with statistics of the training data."""
