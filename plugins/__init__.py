"""The built-in plugins. Like other plugins, they import public names of ingestd only."""
