"""A page of the journal's stream, also one that ends at a size: `XRANGE` has a limit on the number of entries only."""

from __future__ import annotations

from typing import Any

__all__ = ["read_page"]

_SCRIPT = b"""
local after, limit, bytes, step = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local found = {}
while #found < limit and bytes > 0 do
  local count = math.min(step, limit - #found)
  local some = redis.call('XRANGE', KEYS[1], (after + 1) .. '-0', '+', 'COUNT', count)
  for _, entry in ipairs(some) do
    found[#found + 1] = entry
    for at = 1, #entry[2], 2 do
      if entry[2][at] == 'b' then bytes = bytes - #entry[2][at + 1] end
    end
  end
  if #some < count then break end
  after = tonumber(string.match(some[#some][1], '^%d+'))
end
return found
"""
_STEP = 2  # entries: Redis looks at the size after so many


def read_page(stream: str, after: int, limit: int, size: int | None) -> tuple[Any, ...]:
    """The command for at most `limit` entries of a stream after a position.

    With a `size`, the page ends once its bodies have so many bytes, or with the entry after that. It then takes four
    times as much of Redis' time.
    """
    if size is None:
        return "XRANGE", stream, f"{after + 1}-0", "+", "COUNT", limit
    return "EVAL", _SCRIPT, 1, stream, after, limit, size, _STEP
