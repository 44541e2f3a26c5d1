"""The report of `ingestd check`: columns, JSON, the exit code, and no secret."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.api.check_result import CheckResult, Status, fault, show_age, show_size
from ingestd.api.errors import ConfigError, SinkRetry, Unavailable
from ingestd.api.options import Options, Secret, Url
from ingestd.plugins.tools.check.report import Report
from tests.support.terminal import HOSTILE

STATUSES: tuple[Status, ...] = ("ok", "warning", "unavailable", "broken")


class Inner(Options):
    token: Secret


class Outer(Options):
    url: Url
    inner: tuple[Inner, ...]
    grants: dict[str, Secret]


@given(statuses=st.lists(st.sampled_from(STATUSES)))
def test_the_worst_result_decides_the_exit_code_and_every_fault_is_shown(statuses: list[Status]) -> None:
    report = Report("a.toml")
    report.add("group", [CheckResult(f"n{number}", f"text {number}", each) for number, each in enumerate(statuses)])
    code = 78 if "broken" in statuses else 75 if "unavailable" in statuses else 0
    told = report.facts()
    assert report.exit_code == told["exitCode"] == code
    assert type(report.error) is {78: ConfigError, 75: Unavailable, 0: type(None)}[code]
    faults = [f"group: n{n}: text {n}" for n, each in enumerate(statuses) if each in {"unavailable", "broken"}]
    assert told["faults"] == faults
    assert str(report.error) == ("; ".join(faults) if faults else "None")
    assert len(told["warnings"]) == statuses.count("warning")
    assert [each["status"] for each in told["group"]] == statuses
    page = "\n".join(report.lines())
    assert (page.count("FAULT: "), page.count("WARNING: ")) == (len(faults), statuses.count("warning"))
    assert page.endswith("all is well") == ({*statuses} <= {"ok"})


def test_columns_are_aligned_and_a_finding_is_one_line() -> None:
    report = Report("a.toml")
    report.add("one", [CheckResult("name", "text\nof two  lines", "warning"), CheckResult("a longer name", "b")])
    report.add("three", [CheckResult("c", "d")])
    assert "\n".join(report.lines()) == (
        "ingestd check of a.toml\n"
        "one    name           WARNING: text of two lines\n"
        "       a longer name  b\n"
        "three  c              d\n"
        "1 warning: exit 0"
    )


def test_secrets_are_masked_wherever_they_are_quoted() -> None:
    options = Outer(
        url=Url("https://user:pass/w%40rd@host/?token=t0k3n"),
        inner=(Inner(token=Secret("deep")),),
        grants={"erp": Secret("in a table")},
    )
    report = Report("a.toml")
    report.hide([None, options])
    text = f"{str.__str__(options.url)} and deep in a table"
    report.add("sinks", [CheckResult("one", text, "broken", {"said": text, "count": 1})])
    for shown in ("\n".join(report.lines()), json.dumps(report.facts()), str(report.error)):
        for secret in ("pass/w%40rd", "t0k3n", "deep", "in a table"):
            assert secret not in shown
        assert "https://user:***@host/?token=*** and *** ***" in shown


@pytest.mark.parametrize(
    ("secret", "text", "shown"),
    [
        ("shop", "s3://shop-lake/events, shop.jsonl, /var/shop/a, shopping", ...),
        ("shop", "'shop', key=shop.", "'***', key=***."),
        ("production", "production-lake", ...),
        ("0123456789abcdef", "x0123456789abcdef-", "x***-"),
        ("correcthorsebatterystaple", "/hook/correcthorsebatterystaple/x", "/hook/***/x"),
        ("p@ss w/rd", "u:p%40ss%20w%2Frd@host, p@ss w/rd", "u:***@host, ***"),
        ("p%40ss", "no user with p@ss", "no user with ***"),
    ],
)
def test_no_part_of_a_word_is_masked(secret: str, text: str, shown: Any) -> None:
    report = Report("a.toml")
    report.hide({"access_key": Secret(secret)})
    report.add("sinks", [CheckResult("lake", text)])
    assert (report.facts()["sinks"][0]["text"]) == (text if shown is ... else shown)


@pytest.mark.parametrize("blank", ["", " ", "\n"])
def test_a_blank_secret_does_not_mask_other_text(blank: str) -> None:
    report = Report("a.toml")
    report.hide(Outer(url=Url(blank), inner=(Inner(token=Secret(blank)),), grants={"erp": Secret("hidden")}))
    report.add("sinks", [CheckResult("one", "ok, hidden")])
    assert "\n".join(report.lines()) == "ingestd check of a.toml\nsinks  one  ok, ***\nall is well"


@pytest.mark.parametrize(
    ("error", "text", "status"),
    [
        (ConfigError("mend it"), "mend it", "broken"),
        (Unavailable("not now"), "not now", "unavailable"),
        (SinkRetry("busy", after=3), "busy", "unavailable"),
        (ConnectionRefusedError(111, "Connection refused"), "[Errno 111] Connection refused", "unavailable"),
        (TimeoutError(), "TimeoutError()", "unavailable"),
        (KeyError("name"), "KeyError('name')", "unavailable"),
    ],
)
def test_an_error_is_broken_or_unavailable(error: Exception, text: str, status: Status) -> None:
    assert fault("one", error) == CheckResult("one", text, status)


def test_ages_and_sizes_are_for_people() -> None:
    second, hour = 1000, 3_600_000
    ages = [0, 999, second, 119 * second, 120 * second, 2 * hour - 1, 2 * hour, 47 * hour, 48 * hour, 900 * 24 * hour]
    assert [show_age(each) for each in ages] == [
        "0 ms", "999 ms", "1 s", "119 s", "2 min", "119 min", "2 h", "47 h", "2 d", "900 d",
    ]  # fmt: skip
    sizes = [0, 1023, 1024, 1536, 1 << 20, 5 << 30, 3 << 50]
    assert [show_size(each) for each in sizes] == [
        "0 B", "1023 B", "1.0 KiB", "1.5 KiB", "1.0 MiB", "5.0 GiB", "3072.0 TiB",
    ]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_foreign_text_steers_no_terminal(text: str) -> None:
    report = Report("a.toml")
    report.add("group", [CheckResult("name", f"said: {text}", "broken")])
    assert all(line.isprintable() for line in report.lines())
    assert json.dumps(report.facts()).isprintable()
