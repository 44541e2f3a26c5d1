"""Helpers that the kernel and the built-in plugins share. They know nothing of events, and are promised to nobody."""
