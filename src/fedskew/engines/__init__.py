"""Ways of asking clients; none knows a method."""
