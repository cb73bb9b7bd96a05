"""What clients and the server do in a run, for every engine and for federations."""
