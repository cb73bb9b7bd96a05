"""Ways to ask clients; no engine knows a method."""
