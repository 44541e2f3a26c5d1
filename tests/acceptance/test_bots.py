"""The plugin `bots` in a daemon: events of crawlers are marked or dropped, and a reload changes the action."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.support.clients import wait_until
from tests.support.daemon import Daemon, Shop

EVENT = {"key": "Page View", "anonymousId": "visitor", "data": {}, "context": {"bot": "the caller's own"}}
IDENTIFY = {"anonymousId": "visitor", "userId": "ann"}
CRAWLER = {"user_agent": "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)"}
BROWSER = {"user_agent": "Mozilla/5.0 (X11; Linux x86_64; rv:132.0) Gecko/20100101 Firefox/132.0"}


def judged(daemon: Daemon) -> tuple[float, ...]:
    return tuple(daemon.metric(f'ingestd_bots_events_total{{action="{action}"}}') for action in ("drop", "mark"))


def test_events_of_crawlers_are_left_alone_then_marked_then_dropped(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    without = shop.config.read_text()

    def act(action: str) -> None:
        before = daemon.metric("ingestd_config_generation")
        shop.config.write_text(f'{without}\n[plugins.bots]\naction = "{action}"\ndeny = ["ShopMonitor/"]\n')
        os.kill(daemon.pid, signal.SIGHUP)
        wait_until(lambda: daemon.metric("ingestd_config_generation") > before)

    def bots() -> list[object]:
        return [record["context"].get("bot") for record in shop.stored()]

    with shop.serve() as daemon:
        key = shop.public.id
        assert daemon.post("/track", EVENT, key, **CRAWLER).status == 200
        act("mark")
        assert daemon.post("/track", EVENT, key, **CRAWLER).status == 200
        assert (
            daemon.post("/batch", {"events": [EVENT, {**IDENTIFY, "type": "identify"}]}, key, **CRAWLER).status == 200
        )
        assert daemon.post("/identify/public", IDENTIFY, key, user_agent="ShopMonitor/1.0").status == 200
        assert daemon.post("/track", EVENT, key, **BROWSER).status == 200
        assert daemon.post_signed(EVENT, shop.server, user_agent="python-requests/2.32.3").status == 200
        own = "the caller's own"
        assert bots() == [own, "Googlebot", "Googlebot", "Googlebot", "ShopMonitor/", own, own]
        assert judged(daemon) == (0, 4)

        act("drop")
        visitor = {"anonymousId": "crawled"}
        assert daemon.post("/identify/public", {**IDENTIFY, **visitor}, key, **CRAWLER).status == 200
        assert daemon.post("/batch", {"events": [EVENT, EVENT]}, key, **CRAWLER).status == 200
        assert daemon.post("/track", {**EVENT, **visitor}, key, **CRAWLER).json()["session"]["isNew"]
        assert daemon.post("/track", {**EVENT, **visitor}, key, **BROWSER).json()["session"]["isNew"]
        assert (len(bots()), shop.stored()[-1]["userId"], shop.stored()[-1]["sessionIsNew"]) == (8, None, True)
        assert judged(daemon) == (4, 4)
        assert daemon.metric('ingestd_events_total{endpoint="track",key="Page View",outcome="dropped"}') == 3
        assert daemon.metric('ingestd_identifies_total{outcome="dropped"}') == 1
