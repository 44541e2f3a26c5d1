"""`ingestd check`: what would keep the daemon from starting or working, all of it on one page."""
