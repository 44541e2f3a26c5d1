"""Validation: checks request bodies against JSON Schema."""
