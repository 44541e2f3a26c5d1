"""The built-in plugins. They use only public names of ingestd, as anyone's would."""
