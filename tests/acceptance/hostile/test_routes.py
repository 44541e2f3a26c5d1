"""No request without a valid key takes much of the event loop, whatever path of the daemon it goes to."""

from __future__ import annotations

from uuid import UUID

from benchmarks import hostile_routes
from benchmarks.attacks import Keys
from benchmarks.servers import Server
from ingestd.http.routes import BASE_PATH, OWN_OPERATIONS, Routes
from ingestd.plugins.segment.intake import SegmentIntake
from tests.kernel.hooks.test_intakes import Notes
from tests.support.daemon import Daemon

MOST = 4.0
"""Milliseconds. The goal of `make hostile` is one. Here the machine is busy, and CPU time grows in steps of up to 4."""

KEYS = [Keys("", str(UUID(int=number, version=4))) for number in range(100)]


def test_every_route_is_attacked() -> None:
    """The attacks are made from the table in which the daemon finds its routes."""
    routes = Routes([SegmentIntake({}, accepts_unknown=False), Notes()])
    own = {BASE_PATH + path for path in OWN_OPERATIONS}
    assert set(routes.table) == own | {route.path for each in (SegmentIntake, Notes) for route in each.routes}
    assert set(hostile_routes.routes()) == set(routes.table) - {route.path for route in Notes.routes} | {
        f"{BASE_PATH}/client.js"
    }
    for path, operation in routes.table.items():
        assert operation.answers_alone or routes.find(path) is operation
        sent = [row.request for row in hostile_routes.rows(path, operation, KEYS[0])]
        methods = {request.partition(b" ")[0] for request in sent}
        assert {b"GET", b"HEAD", b"OPTIONS", b"POST"} <= methods
        before = path.partition("{")[0].encode()
        assert all(before in request.partition(b"\r\n")[0] for request in sent)


def test_no_request_without_a_key_takes_much_of_the_loop(daemon: Daemon) -> None:
    server = Server("ingestd", daemon.pid, daemon.port)
    costs = hostile_routes.costs(server, KEYS, 0.0, most=MOST, share=5)  # most routes are alike
    assert {path: worst[:3] for path, worst in costs if worst[0][0] > MOST} == {}
