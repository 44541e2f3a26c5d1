"""`ingestd store copy | compare`: all data of a store to another one."""
