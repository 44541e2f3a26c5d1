"""Plugins: found, checked, configured, and called by their hooks."""
