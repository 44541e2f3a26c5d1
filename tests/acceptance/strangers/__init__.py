"""What a stranger with a shop's public key can do, on both HTTP servers and both stores."""
