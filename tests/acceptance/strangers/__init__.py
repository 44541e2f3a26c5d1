"""Attacks by strangers with a shop's public key, on both HTTP servers and both stores."""
