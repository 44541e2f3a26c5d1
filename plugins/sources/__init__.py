"""Sources: which site, network or assistant a visitor came from, and the channel of it. docs/sources.md has the rules.

Pure functions and tables, without state. `attribution` makes touchpoints of them.
"""

from __future__ import annotations

from .channels import ChannelRule, Channels
from .rules import ClickId, ClickSource, SourceRules

__all__ = ["ChannelRule", "Channels", "ClickId", "ClickSource", "SourceRules"]
