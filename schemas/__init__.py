"""One JSON Schema file per event key; shared definitions are in `definitions/`."""
