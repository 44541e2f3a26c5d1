"""Metrics, logs and the operators' page."""
