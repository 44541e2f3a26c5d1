"""The scripts for Redis. Each is put together of its files."""

from __future__ import annotations

from importlib.resources import files

__all__ = ["BATCH", "PAGE"]


def _read(name: str) -> bytes:
    return files(__package__).joinpath(name).read_bytes()


_PIECES = _read("pieces.lua")

BATCH = _PIECES + _read("batch.lua").replace(b"--include upkeep.lua\n", _read("upkeep.lua"))
PAGE = _PIECES + _read("page.lua")
