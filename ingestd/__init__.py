"""Customer-event ingestion for e-commerce: HTTP endpoints, a durable journal, sinks."""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
