"""`ingestd forget`: the removal of a person from the state and the journal."""
