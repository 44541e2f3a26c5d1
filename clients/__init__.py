"""Clients that send events to ingestd."""
