"""A model of the contract of `State` for values and fields, based on a dictionary."""

from __future__ import annotations

from typing import NamedTuple

from ingestd.api.store import Field

__all__ = ["Kept", "Model"]


class Kept(NamedTuple):
    value: str | None = None
    expires: int | None = None
    fields: dict[str, Field] | None = None


class Model:
    """Each operation takes the time of its transaction first."""

    def __init__(self) -> None:
        self.kept: dict[str, Kept] = {}

    def get(self, now: int, key: str) -> str | None:
        kept = self.kept.get(key, Kept())
        return None if kept.expires is not None and now > kept.expires else kept.value

    def put(self, now: int, key: str, value: str, ttl: int | None) -> str | None:
        before = self.get(now, key)
        expires = None if ttl is None else now + ttl
        if before == value:
            old = self.kept[key].expires
            expires = None if old is None or expires is None else max(old, expires)
        self.kept[key] = Kept(value, expires)
        return before

    def swap(self, now: int, key: str, expected: str | None, value: str, ttl: int | None) -> bool:
        if self.get(now, key) != expected:
            return False
        self.put(now, key, value, ttl)
        return True

    def renew(self, now: int, key: str, candidate: str, ttl: int) -> tuple[str, bool]:
        present = self.get(now, key)
        self.put(now, key, candidate if present is None else present, ttl)
        return (candidate, True) if present is None else (present, False)

    def delete(self, now: int, key: str) -> None:
        self.kept.pop(key, None)

    def merge(
        self, now: int, key: str, fields: dict[str, Field], *, keep: int | None = None, keep_size: int | None = None
    ) -> int:
        if not fields:
            return 0
        before = self.kept.get(key, Kept()).fields or {}
        newer = {name: new for name, new in fields.items() if name not in before or new.at >= before[name].at}
        merged = {**before, **newer}
        newest = sorted(merged.items(), key=lambda item: (item[1].at, item[0]))
        while newest and (
            (keep is not None and len(newest) > keep)
            or (keep_size is not None and sum(len((name + field.value).encode()) for name, field in newest) > keep_size)
        ):
            del newest[0]
        if dict(newest) != before or len(newest) < len(merged):
            self.kept[key] = Kept(fields=dict(newest))
        return len(merged) - len(newest)

    def fields(self, now: int, key: str) -> dict[str, Field]:
        return self.kept.get(key, Kept()).fields or {}
