"""Run a site's side of a federation."""
