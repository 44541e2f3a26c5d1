"""`ingestd events import`."""
