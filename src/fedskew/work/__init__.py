"""What a client and the server do, written once."""
