"""The door: HTTP in, one answer out."""
