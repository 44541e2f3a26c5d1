"""The API for callers as an OpenAPI document, made from the schemas that are in force."""
