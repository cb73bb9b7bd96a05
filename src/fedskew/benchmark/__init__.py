"""Speed: a round of training against the bare PyTorch loop that makes exactly the same local steps."""
