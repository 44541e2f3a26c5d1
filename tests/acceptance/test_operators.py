"""What operators see of a running daemon: health and readiness, on a listener of their own."""

from __future__ import annotations

import pytest

from tests.support.daemon import Daemon


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
def test_a_daemon_that_serves_is_live_and_ready(path: str, daemon: Daemon) -> None:
    answer = daemon.ops(path)
    assert (answer.status, answer.body) == (200, b"ok\n")


def test_there_is_nothing_else_for_operators_and_nothing_of_theirs_in_public(daemon: Daemon) -> None:
    for path in ("/index.html", "/status", "/metric", "/metrics//", "/api/v1/analytics/track"):
        assert daemon.ops(path).status == 404
    for path in ("/", "/status.json", "/livez", "/readyz", "/metrics", "/openapi.json"):
        assert daemon.request("GET", path).status == 404
