"""`[journal] url` beside `[store] url`: one daemon with two files makes the same promises."""

from __future__ import annotations

from pathlib import Path

from tests.support.daemon import Daemon, Shop

EVENT = {"key": "Page View", "anonymousId": "visitor", "data": {}}


def test_journal_and_state_in_separate_files_survive_a_kill(tmp_path: Path) -> None:
    shop = Shop(tmp_path, {"journal": 'url = "sqlite:journal.db"'})
    with Daemon(shop.config) as daemon:
        identify = {"anonymousId": "visitor", "userId": "user", "traits": {}}
        assert daemon.post("/identify/public", identify, shop.public.id).status == 200
        session = daemon.post("/track", EVENT, shop.public.id).json()["session"]["sessionId"]
        daemon.kill()
    with shop.serve() as again:
        answer = again.post("/track", EVENT, shop.public.id).json()["session"]
        assert answer == {"sessionId": session, "isNew": False}
    assert [record["userId"] for record in shop.exported()] == ["user"] * 3
    assert [record["userId"] for record in shop.archived()] == ["user"] * 3
    assert (tmp_path / "journal.db").stat().st_size > 0
