"""Parts and the protocol they keep."""
