"""The embedded back end: journal and state in one SQLite file."""
