"""Clients that mean harm or know no better, against the installed daemon."""
