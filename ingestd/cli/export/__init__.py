"""`ingestd events export`."""
