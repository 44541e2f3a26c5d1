"""The client for backends in Python: it signs events, keeps them on disk, and sends them until ingestd has them.

It needs the standard library alone, on a system with `fcntl`.
"""

from __future__ import annotations

from .asynchronous import AsyncClient
from .client import Client
from .folder import QueueFull
from .sender import KeyRefused

__all__ = ["AsyncClient", "Client", "KeyRefused", "QueueFull"]
