"""Rules that split samples among clients. Pure numpy."""
