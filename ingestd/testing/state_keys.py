"""The time and the keys of the entries in the store contract."""

from __future__ import annotations

from ingestd.api.store import state_key

__all__ = ["KEY", "MEMBERS", "NOW", "OTHER"]

NOW = 1_795_233_906_000
KEY = state_key("contract", "shop", "visitor")
OTHER = state_key("contract", "shop", "another")
MEMBERS = state_key("contract-set", "shop", "visitor")
