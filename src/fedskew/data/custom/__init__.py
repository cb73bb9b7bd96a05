"""Users' own data: folders, tables, arrays, and PyTorch data sets."""
