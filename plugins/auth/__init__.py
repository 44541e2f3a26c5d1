"""Authentication: public keys, server keys and their signatures."""
