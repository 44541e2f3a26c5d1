"""Runs the consumers of the journal, each with its own cursor and retries."""
