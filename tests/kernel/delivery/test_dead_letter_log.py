"""Log lines about new dead letters: the first, fewer and fewer of many, and each new reason, but never a flood."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ingestd.delivery.dead_letter_log import DeadLetterLog
from ingestd.delivery.dead_letters import DeadLetter

pytestmark = pytest.mark.logs("sink:crm: .* dead letter")


class Desk:
    """A sink's log of dead letters, with a clock that a test sets."""

    def __init__(self, messages: Callable[[], list[str]]) -> None:
        self.now = 0.0
        self._log = DeadLetterLog("crm", lambda: self.now)
        self._number = 0
        self._messages = messages

    def give_up(self, *reasons: str) -> list[str]:
        """Report dead letters with these reasons. Returns the new lines."""
        before = len(self._messages())
        letters = []
        for reason in reasons:
            self._number += 1
            letters.append(DeadLetter(self._number, reason, 0, 1, "event", self._number, 0, msgspec.Raw(b"{}")))
        self._log.report(letters, kept=self._number)
        return self._messages()[before:]


@pytest.fixture
def desk(caplog: pytest.LogCaptureFixture) -> Desk:
    def messages() -> list[str]:
        return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]

    return Desk(messages)


def test_a_line_names_the_sink_the_number_the_reason_and_the_command(desk: Desk) -> None:
    assert desk.give_up("no such customer") == [
        "sink:crm: a record has become dead letter 1; 1 kept, shown by: ingestd sinks dead-letters list crm;"
        " the last one's reason: no such customer"
    ]
    assert desk.give_up("no", "no", "no") == [
        "sink:crm: 3 records have become dead letters, the last is number 4; 4 kept, shown by:"
        " ingestd sinks dead-letters list crm; the last one's reason: no"
    ]
    assert desk.give_up() == []


def test_the_1st_2nd_4th_and_8th_letters_are_logged(desk: Desk) -> None:
    assert [number for number in range(1, 101) if desk.give_up(f"no {number}")] == [1, 2, 4, 8, 16, 32, 64]


def test_a_new_reason_is_logged_soon(desk: Desk) -> None:
    for _ in range(4):
        desk.give_up("no")
    desk.now += 10
    assert desk.give_up("no") == []
    assert len(desk.give_up("full")) == 1
    assert desk.give_up("other") == []  # too soon
    desk.now += 10
    assert len(desk.give_up("other")) == 1


def test_after_a_quiet_time_a_dead_letter_is_logged_again(desk: Desk) -> None:
    for _ in range(4):
        desk.give_up("no")
    desk.now += 599
    assert desk.give_up("no") == []
    desk.now += 600
    assert len(desk.give_up("no")) == 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.text(max_size=3), min_size=1, max_size=9), max_size=60))
def test_lines_are_few_for_any_reasons(caplog: pytest.LogCaptureFixture, steps: list[list[str]]) -> None:
    caplog.clear()
    desk = Desk(lambda: [each.getMessage() for each in caplog.records])
    lines = sum(len(desk.give_up(*reasons)) for reasons in steps)
    count = sum(map(len, steps))
    assert lines <= count.bit_length()
    assert bool(lines) == bool(count)


def test_a_letter_of_a_partition_is_named_as_commands_take_it(caplog: pytest.LogCaptureFixture) -> None:
    log = DeadLetterLog("crm", partition="07")
    log.report([DeadLetter(3, "too long", 0, 1, "event", 9, 0, msgspec.Raw(b"{}"))], kept=1)
    assert "has become dead letter 07:3;" in caplog.messages[-1]
