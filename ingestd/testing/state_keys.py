"""The time and the keys of the entries in the store contract."""

from __future__ import annotations

from ingestd.api.store import state_key

__all__ = ["KEY", "MEMBERS", "NOW", "OTHER"]

NOW = 4_102_444_800_000  # beyond the present: what has a life here has not ended for the daemon
KEY = state_key("contract", "shop", "visitor")
OTHER = state_key("contract", "shop", "another")
MEMBERS = state_key("contract-set", "shop", "visitor")
