"""Terms of the client objective."""
