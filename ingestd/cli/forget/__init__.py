"""`ingestd forget`: a person taken out of the state and the journal."""
