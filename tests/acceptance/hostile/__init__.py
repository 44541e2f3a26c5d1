"""Malicious and broken clients against the installed daemon."""
