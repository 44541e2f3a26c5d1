"""Runs the consumers of the journal. Each has a cursor and its own retries."""
