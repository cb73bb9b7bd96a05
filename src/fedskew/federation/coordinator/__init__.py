"""Run the coordinator's side of a federation."""
