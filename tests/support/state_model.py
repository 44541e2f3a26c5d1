"""The contract of `State`, in dictionaries."""

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
        self.sets: dict[str, tuple[dict[str, int], int | None]] = {}
        """The members of each set with their times, and the expiry of the set."""

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
        self.sets.pop(key, None)

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

    def push(
        self,
        now: int,
        key: str,
        member: str,
        at: int,
        *,
        keep: int,
        first: bool,
        since: int | None,
        ttl: int | None,
    ) -> None:
        members, expires = self.sets.get(key, ({}, None))
        new = None if ttl is None else now + ttl
        if not members or (expires is not None and expires < now):
            members, expires = {}, new
        elif expires is not None:
            expires = None if new is None else max(expires, new)
        members = {each: time for each, time in {**members, member: at}.items() if since is None or time >= since}
        ordered = sorted(members.items(), key=lambda item: (item[1], item[0]))
        excess = max(0, len(ordered) - keep)
        self.sets[key] = dict(ordered[:first] + ordered[first + excess :] if excess else ordered), expires

    def pull(self, now: int, key: str, members: list[str]) -> None:
        present, expires = self.sets.get(key, ({}, None))
        self.sets[key] = {member: at for member, at in present.items() if member not in members}, expires

    def window(self, now: int, key: str, since: int | None, until: int | None) -> list[tuple[str, int]]:
        members, expires = self.sets.get(key, ({}, None))
        if expires is not None and expires < now:
            return []
        found = sorted(members.items(), key=lambda item: (item[1], item[0]))
        return [
            (member, at) for member, at in found if (since is None or at >= since) and (until is None or at <= until)
        ]
