"""`ingestd check`: one page with all faults that would keep the daemon from starting or working."""
