"""Finds, checks and configures plugins, and calls their hooks."""
