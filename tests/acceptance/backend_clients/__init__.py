"""The clients for backends against a daemon: each of them is a program in its own language."""
