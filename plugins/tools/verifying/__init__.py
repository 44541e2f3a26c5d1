"""Compares what a sink's destination has with what the journal says it should have: `ingestd sinks verify`."""
