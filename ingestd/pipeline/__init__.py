"""The path of a request: from its bytes to durable events and an answer."""
