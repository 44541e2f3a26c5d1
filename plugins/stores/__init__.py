"""Built-in back ends."""
