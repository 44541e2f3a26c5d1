"""What callers send, compared with the schemas: `ingestd schemas check` and `ingestd schemas catalogue`."""
