"""One file per paper: a card and a composition."""
