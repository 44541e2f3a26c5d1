"""`ingestd partitions place`: a tenant with all its data to another partition."""
