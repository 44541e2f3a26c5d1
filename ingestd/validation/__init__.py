"""Checks bodies against JSON Schema."""
