"""Log lines: complete, bounded, from the daemon only, and without secrets; the access log limits floods."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ingestd.api.events import Endpoint, Request
from ingestd.config import LogsOptions
from ingestd.http.access_log import AccessLog
from ingestd.observability.logs import current_request
from ingestd.observability.logs.formats import JsonFormatter, TextFormatter
from tests.support.daemon import sign

KEY = "pk_J5W8S6n0nB-hPzTqkXc3_eR1vYdM7uGaLf2oQwZt9Ks"
SECRET = "y0Q3n_8mVtLrWzPa6KcXe2Hj-9SdUfGbN5oTiR1uM7w"
SIGNATURE = sign(SECRET, b"{}")
FORMATTERS = [TextFormatter(), JsonFormatter()]


def record(message: object, *arguments: object, error: BaseException | None = None) -> logging.LogRecord:
    info = None if error is None else (type(error), error, error.__traceback__)
    line = logging.LogRecord("shop_tools", logging.ERROR, __file__, 1, message, arguments, info)
    line.created = 1_795_233_600.5
    return line


@contextmanager
def answering(authorization: str = f"Bearer {KEY}", **headers: str) -> Iterator[Request]:
    """Lines logged in this context are logged during the answer to this request."""
    named = {"Authorization": authorization, **{name.replace("_", "-"): value for name, value in headers.items()}}
    request = Request(Endpoint.TRACK, named, b"", received_at=0)
    token = current_request.set(request)
    try:
        yield request
    finally:
        current_request.reset(token)


def test_a_line_for_people() -> None:
    with answering() as request:
        shown = TextFormatter().format(record("%d boxes", 7))
    assert shown == f"2026-11-21T04:00:00.500Z ERROR shop_tools [{request.id}]: 7 boxes"
    assert TextFormatter().format(record("seven")) == "2026-11-21T04:00:00.500Z ERROR shop_tools: seven"
    assert "\x1b[31mERROR\x1b[0m shop_tools: seven" in TextFormatter(colour=True).format(record("seven"))


def test_a_line_for_machines() -> None:
    with answering() as request:
        shown = JsonFormatter().format(record("%d boxes", 7, error=ValueError("heavy")))
    assert json.loads(shown) == {
        "time": "2026-11-21T04:00:00.500Z",
        "level": "error",
        "logger": "shop_tools",
        "message": "7 boxes",
        "request_id": request.id,
        "exception": "ValueError: heavy",
    }
    assert [*json.loads(JsonFormatter().format(record("seven")))] == ["time", "level", "logger", "message"]


@given(st.text(st.characters()))  # lone surrogates too
@example("\n2026-11-21T04:00:00.000Z ERROR ingestd: forged")
@example("\u202etxet\u2028\x85\x1b[2J\r\0\ud800")
@example('"}\n{"message": "forged')
def test_any_message_is_one_line(text: str) -> None:
    shown = TextFormatter().format(record("%s", text))
    assert shown.isprintable()
    assert shown.encode().startswith(b"2026-11-21T04:00:00.500Z ERROR shop_tools: ")
    line = JsonFormatter().format(record("%s", text))
    assert line.isascii()
    assert line.isprintable()
    members = msgspec.json.decode(line)  # msgspec is stricter than Python's decoder
    if not any(0xD800 <= ord(each) < 0xE000 for each in text) and not re.search(r"[\w-]{40}|://", text):
        assert members["message"] == text.rstrip()


@given(st.text(st.characters()))
@example("two\nlines\r\n2026-11-21T04:00:00.000Z ERROR ingestd: forged")
def test_no_line_of_a_traceback_looks_like_a_log_line(text: str) -> None:
    try:
        raise ValueError(text)
    except ValueError as error:
        first, *others = TextFormatter().format(record("failed", error=error)).split("\n")
        assert first.endswith(" ERROR shop_tools: failed")
        assert all(line.startswith("    ") and line.isprintable() for line in others)
        assert any("Traceback" in line for line in others)
        members = msgspec.json.decode(JsonFormatter().format(record("failed", error=error)))
        assert members["exception"].startswith("Traceback")


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("not today")


@pytest.mark.parametrize("formatter", FORMATTERS)
@pytest.mark.parametrize("call", [("%d boxes", "seven"), ("a box", 7), ("%r", Unshowable())])
def test_a_wrong_log_call_still_makes_a_line(formatter: logging.Formatter, call: tuple[str, object]) -> None:
    assert call[0] in formatter.format(record(*call))


@pytest.mark.parametrize("formatter", FORMATTERS)
def test_a_line_is_bounded_however_much_an_error_quotes(formatter: logging.Formatter) -> None:
    shown = formatter.format(record("%s", "x" * 1_000_000 + "end", error=ValueError("y " * 500_000 + "end")))
    assert len(shown) < 70_000
    assert shown.count("end") == 2


# Secrets


def quotations(secret: str) -> Iterator[str]:
    yield f"the key {secret} is wrong"
    yield f"{secret}{secret}"
    yield repr({"key": secret})
    yield repr(secret.encode())
    yield json.dumps({"key": [secret]})
    yield repr(json.dumps({"key": secret}).encode())
    yield secret.lower()
    yield secret.upper()


@pytest.mark.parametrize("formatter", FORMATTERS)
@pytest.mark.parametrize("secret", [KEY, SECRET, SIGNATURE])
def test_text_like_a_key_or_signature_is_never_shown(formatter: logging.Formatter, secret: str) -> None:
    for text in [*quotations(secret)][:6]:
        assert secret not in formatter.format(record(text))
        assert secret not in formatter.format(record("%s", text, error=ValueError(text)))


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer abc123",
        "authorization: Basic abc123",
        "AUTHORIZATION=abc123",
        "{'Authorization': 'Bearer abc123', 'Host': 'shop'}",
        "[('authorization', 'Basic abc123')]",
        "(b'Authorization', b'Bearer abc123')",
        '{"x-signature": "abc123"}',
        "bearer abc123",
        "redis://shop:abc123@redis.example:6379/0",
        "https://:abc123@crm.example/in",
    ],
)
@pytest.mark.parametrize("formatter", FORMATTERS)
def test_a_credential_is_hidden_where_its_context_identifies_it(formatter: logging.Formatter, text: str) -> None:
    shown = formatter.format(record(text))
    assert "abc123" not in shown
    assert "***" in shown


@pytest.mark.parametrize("formatter", FORMATTERS)
@given(secret=st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=16, max_size=256))
@example(secret="""'"\\'"\\'"\\'"\\'"\\'""")
@example(secret="0198c5d2-7c8e-4f6b-9a51-3f0e6d2b7c44")
@example(secret="correct-horse,battery,staple")
def test_no_line_about_a_request_contains_its_credential(formatter: logging.Formatter, secret: str) -> None:
    """A declared public key is any 16 or more visible characters. Only the request shows that a text is one."""
    plain = {secret, repr(secret)[1:-1], json.dumps(secret)[1:-1]}
    for headers in ({"authorization": f"Bearer {secret}"}, {"x_shop_token": secret}, {"x_signature": secret}):
        with answering(**headers):
            for text in quotations(secret):
                shown = formatter.format(record(text.replace("%", "%%"), error=ValueError(text)))
                shown = shown.replace("\\\\", "\\").replace('\\"', '"') if formatter is FORMATTERS[1] else shown
                assert not [form for form in plain if form.lower() in shown.lower()]


def test_both_of_two_credentials_are_blanked() -> None:
    with answering("Bearer correct-horse-battery,Basic staple-of-the-shop"):  # the joined form of two header lines
        shown = TextFormatter().format(record("neither correct-horse-battery nor staple-of-the-shop"))
    assert shown.endswith("neither *** nor ***")


@pytest.mark.parametrize("authorization", ["", "Bearer", "Bearer ", "Bearer e", "Bearer a b", "e", " , ,,"])
def test_text_too_short_for_a_key_is_not_hidden(authorization: str) -> None:
    with answering(authorization):
        assert TextFormatter().format(record("the shelves are bare")).endswith(": the shelves are bare")


def test_other_text_is_not_hidden() -> None:
    text = (
        "/usr/lib/python3.11/site-packages/shop_tools/a_module_with_quite_a_long_name_of_its_own_indeed.py "
        "0198c5d2-7c8e-7f6b-9a51-3f0e6d2b7c44 http://[::1]:8080/ sqlite:///var/lib/ingestd/ingestd.db 2026-11-21"
    )
    assert text in TextFormatter().format(record(text))


def test_a_thousand_headers_do_not_make_a_line_expensive() -> None:
    decoys = {f"x-key-{number}": f"decoy-{number},{number}-decoy" for number in range(1000)}
    with answering(x_signature="abc-123", **decoys):
        assert TextFormatter().format(record(f"{KEY} abc-123")).endswith(": *** ***")


# Access lines


def request(log: AccessLog, status: int = 401, **changes: object) -> None:
    log.answered(
        **{  # type: ignore[arg-type]  # the names in `changes` are its arguments
            "method": "POST", "endpoint": Endpoint.TRACK, "status": status, "code": "", "seconds": 0.0125, "size": 80,
            "peer": "192.0.2.7", "request_id": "0198c5d2-7c8e-7f6b-9a51-3f0e6d2b7c44", **changes,
        }
    )  # fmt: skip


async def test_an_access_line_has_the_request_and_the_answer(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log = AccessLog(LogsOptions())
    request(log, code="invalid_key")
    (line,) = caplog.records
    assert line.levelno == logging.INFO
    assert line.getMessage() == "POST track 401 invalid_key in 12.5 ms, 80 bytes from 192.0.2.7"
    shown = json.loads(JsonFormatter().format(line))
    assert {name: shown[name] for name in [*shown][4:]} == {
        "request_id": "0198c5d2-7c8e-7f6b-9a51-3f0e6d2b7c44",
        "method": "POST",
        "endpoint": "track",
        "status": 401,
        "code": "invalid_key",
        "seconds": 0.0125,
        "bytes": 80,
        "peer": "192.0.2.7",
    }
    assert "[0198c5d2-7c8e-7f6b-9a51-3f0e6d2b7c44]: POST" in TextFormatter().format(line)
    log.end_second()
    assert len(caplog.records) == 1


@pytest.mark.logs("POST track 503")
async def test_a_failure_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    log = AccessLog(LogsOptions())
    request(log, 503)
    assert [line.levelname for line in caplog.records] == ["WARNING"]
    log.end_second()


@pytest.mark.parametrize(
    ("options", "status", "logged"),
    [
        (LogsOptions(), 200, False),
        (LogsOptions(access_sample=1), 200, True),
        (LogsOptions(access_errors=False), 401, False),
        (LogsOptions(access_errors=False, access_sample=1), 401, False),
    ],
)
async def test_the_configuration_decides_the_access_log(
    caplog: pytest.LogCaptureFixture, options: LogsOptions, status: int, logged: bool
) -> None:
    caplog.set_level(logging.INFO)
    log = AccessLog(options)
    request(log, status)
    log.end_second()
    assert bool(caplog.records) is logged


async def test_a_sample_is_about_its_share(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log = AccessLog(LogsOptions(access_sample=0.5))
    for _ in range(400):
        request(log, 200)
        log.end_second()
    assert 100 < len(caplog.records) < 300


async def test_an_access_line_contains_no_text_of_the_caller(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log = AccessLog(LogsOptions())
    request(log, 404, method="hunter2hunter2hu", endpoint=None, peer="")
    assert caplog.messages == ["- - 404 in 12.5 ms, 80 bytes from -"]
    log.end_second()


@pytest.mark.logs("POST track 503", "23 more answers")
async def test_a_flood_is_one_line_and_hides_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log = AccessLog(LogsOptions(access_sample=1))
    for _ in range(30):
        request(log, 200)
    for _ in range(32):
        request(log, 401)
    for _ in range(21):
        request(log, 503)
    assert len(caplog.records) == 60
    log.end_second()
    line = caplog.records[60]
    assert line.getMessage() == "23 more answers within a second (10 of status 200, 12 of status 401, 1 of status 503)"
    assert line.levelname == "WARNING"
    assert json.loads(JsonFormatter().format(line))["left_out"] == {"200": 10, "401": 12, "503": 1}
    request(log, 401)
    assert len(caplog.records) == 62
    log.end_second()
    assert len(caplog.records) == 62


async def test_the_end_of_a_flood_is_logged_without_a_later_request_and_without_a_caller(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    told: list[tuple[str, Request | None]] = []

    class Listener(logging.Handler):
        def emit(self, line: logging.LogRecord) -> None:
            told.append((line.getMessage(), current_request.get()))

    listener = Listener()
    logging.getLogger("ingestd.access").addHandler(listener)
    try:
        log = AccessLog(LogsOptions())
        with answering():
            for _ in range(21):
                request(log)
        async with asyncio.timeout(20):
            while len(told) < 21:  # noqa: ASYNC110 - the log has no event to wait for
                await asyncio.sleep(0.05)
    finally:
        logging.getLogger("ingestd.access").removeHandler(listener)
    assert told[20] == ("1 more answers within a second (1 of status 401)", None)


# Texts that Python writes to standard error


ACCIDENTS = f"""
import asyncio, threading, warnings
from ingestd.config import LogsOptions
from ingestd.observability.logs import configure_logs, set_up_logs

set_up_logs(serving=True)
configure_logs(LogsOptions(format="json", level="debug"))

class Untidy:
    def __del__(self):
        raise ValueError("{KEY} in __del__")

def fail():
    raise ValueError("{KEY} in a thread")

async def lost():
    raise ValueError("{KEY} in a task")

async def main():
    asyncio.get_running_loop().set_debug(True)
    task = asyncio.create_task(lost())
    await asyncio.sleep(0)
    del task
    asyncio.get_running_loop().call_soon(lambda: 1 / 0)
    lost()
    await asyncio.sleep(0)

warnings.warn("{KEY} in a warning")
Untidy()
thread = threading.Thread(target=fail)
thread.start()
thread.join()
asyncio.run(main())
raise ValueError("{KEY} at the top")
"""


def test_warnings_and_errors_of_python_are_log_lines_too() -> None:
    done = subprocess.run([sys.executable, "-c", ACCIDENTS], capture_output=True, timeout=60, check=False)
    assert done.returncode == 1
    lines = [msgspec.json.decode(line) for line in done.stderr.splitlines()]
    said = [line["message"] + line.get("exception", "") for line in lines]
    for accident in ("__del__", "a thread", "a task", "a warning", "the top", "ZeroDivisionError", "was never awaited"):
        assert any(accident in each for each in said), accident
    assert not [each for each in said if KEY in each]
    assert any("***" in each for each in said)


def test_an_unwritable_log_does_no_harm_and_reveals_nothing() -> None:
    program = f"""
import logging, os, sys
from ingestd.observability.logs import set_up_logs
set_up_logs()
kept = os.dup(2)
os.dup2(os.open("/dev/full", os.O_WRONLY), 2)
logging.getLogger("ingestd").error("%s", "{KEY}")
os.dup2(kept, 2)
logging.getLogger("ingestd").error("goes on")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert done.stderr.endswith("ingestd: goes on\n")
    assert KEY not in done.stderr


@pytest.mark.parametrize(
    ("level", "shown"),
    [
        ("debug", ["ingestd debug", "ingestd info", "other info", "ingestd error", "other error"]),
        ("info", ["ingestd info", "other info", "ingestd error", "other error"]),
        ("error", ["ingestd error", "other error"]),
    ],
)
def test_the_level_is_for_ingestd_and_other_loggers_log_info_at_most(level: str, shown: list[str]) -> None:
    program = f"""
import logging
from ingestd.config import LogsOptions
from ingestd.observability.logs import configure_logs, set_up_logs
set_up_logs()
configure_logs(LogsOptions(format="text", level="{level}"))
for each in ("debug", "info", "error"):
    for name in ("ingestd.pipeline", "other"):
        logging.getLogger(name).log(getattr(logging, each.upper()), "%s %s", name.partition(".")[0], each)
logging.getLogger("tornado.general").info("a malformed header")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert [line.partition(": ")[2] for line in done.stderr.splitlines()] == shown
