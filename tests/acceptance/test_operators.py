"""The operators' listener of a running daemon: liveness and readiness."""

from __future__ import annotations

import pytest

from tests.support.daemon import Daemon


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
def test_a_daemon_that_serves_is_live_and_ready(path: str, daemon: Daemon) -> None:
    answer = daemon.ops(path)
    assert (answer.status, answer.body) == (200, b"ok\n")


def test_the_two_listeners_share_no_paths(daemon: Daemon) -> None:
    for path in ("/index.html", "/status", "/metric", "/metrics//", "/api/v1/analytics/track"):
        assert daemon.ops(path).status == 404
    for path in ("/", "/status.json", "/livez", "/readyz", "/metrics", "/openapi.json"):
        assert daemon.request("GET", path).status == 404
