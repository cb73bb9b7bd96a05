"""What the server does with updates: weigh, reduce and step."""
