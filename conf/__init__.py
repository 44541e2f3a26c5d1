"""The annotated configuration."""
