"""The risks of connections that `ingestd check` warns of: passwords in clear, and servers that nobody verifies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ingestd.api.events import Record
from ingestd.api.options import is_local, read_options
from ingestd.api.sink import Sink
from ingestd.plugins.sinks.clickhouse import ClickHouseSink
from ingestd.plugins.sinks.kafka import KafkaSink
from ingestd.plugins.sinks.nats import NatsSink
from ingestd.plugins.sinks.parquet import ParquetSink
from ingestd.plugins.sinks.postgres import PostgresSink
from ingestd.plugins.sinks.redis_stream import RedisStreamSink
from ingestd.plugins.sinks.webhook import WebhookSink
from ingestd.plugins.tools.check.config_faults import sink_risks


class Faulty(Sink):
    async def write(self, batch: Sequence[Record]) -> None:
        raise NotImplementedError

    def risks(self) -> Sequence[str]:
        raise RuntimeError("no idea")


PASSWORD = "geheim-0123456789"
REMOTE: list[tuple[type[Sink], dict[str, Any], str | None]] = [
    (WebhookSink, {"url": "http://u:PW@HOST/in"}, "url"),
    (WebhookSink, {"url": "http://HOST/in", "headers": {"X-Api-Key": "PW"}}, "headers.X-Api-Key"),
    (WebhookSink, {"url": "http://HOST/in", "headers": {"X-Shop": "PW"}}, None),
    (WebhookSink, {"url": "http://HOST/in", "secret": "PW"}, None),  # it signs, and is not sent
    (WebhookSink, {"url": "https://u:PW@HOST/in"}, None),
    (ClickHouseSink, {"url": "http://HOST:8123", "user": "u", "password": "PW"}, "url"),
    (ClickHouseSink, {"url": "http://u:PW@HOST:8123"}, "url"),
    (ClickHouseSink, {"url": "https://HOST:8443", "user": "u", "password": "PW"}, None),
    (ClickHouseSink, {"url": "http://HOST:8123"}, None),
    (KafkaSink, {"brokers": ["127.0.0.1:9092", "HOST:9092"], "user": "u", "password": "PW"}, "password"),
    (KafkaSink, {"brokers": ["HOST:9092"], "user": "u", "password": "PW", "tls": True}, None),
    (KafkaSink, {"brokers": ["HOST:9092"]}, None),
    (NatsSink, {"url": "nats://u:PW@HOST:4222", "stream": "S"}, "url"),
    (NatsSink, {"servers": ["nats://localhost:4222", "nats://:PW@HOST:4222"], "stream": "S"}, "servers[1]"),
    (NatsSink, {"url": "tls://u:PW@HOST:4222", "stream": "S"}, None),
    (RedisStreamSink, {"url": "redis://:PW@HOST:6379/0", "stream": "s"}, "url"),
    (RedisStreamSink, {"url": "rediss://:PW@HOST:6379/0", "stream": "s"}, None),
    (PostgresSink, {"url": "postgresql://u:PW@HOST/db"}, "url"),
    (PostgresSink, {"url": "postgresql://u:PW@localhost,HOST:5433/db?sslmode=require"}, "url"),
    (PostgresSink, {"url": "postgresql://u@/db?host=HOST&sslmode=verify-ca"}, "url"),
    (PostgresSink, {"url": "postgresql://u:PW@HOST/db?sslmode=verify-full"}, None),
    (ParquetSink, {"url": "s3://lake", "storage": {"endpoint_override": "http://HOST:9000"}}, "storage"),
    (ParquetSink, {"url": "s3://lake", "storage": {"endpoint_override": "HOST:9000", "scheme": "http"}}, "storage"),
    (ParquetSink, {"url": "s3://lake", "storage": {"endpoint_override": "https://HOST:9000"}}, None),
    (ParquetSink, {"path": "lake"}, None),
]


def filled(value: Any, host: str) -> Any:
    if isinstance(value, dict):
        return {name: filled(each, host) for name, each in value.items()}
    if isinstance(value, list):
        return [filled(each, host) for each in value]
    return value.replace("HOST", host).replace("PW", PASSWORD) if isinstance(value, str) else value


def risks(kind: type[Sink], table: dict[str, Any], host: str, folder: Path) -> list[str]:
    options = read_options(kind.Options, filled(table, host), path="sinks.x", source="x.toml", base=folder)
    return [*kind("x", options).risks()]


@pytest.mark.parametrize("host", ["db.example", "192.0.2.7", "10.0.0.7"])
@pytest.mark.parametrize(("kind", "table", "option"), REMOTE)
def test_a_risk_names_the_option_the_host_and_a_cure(
    kind: type[Sink], table: dict[str, Any], option: str | None, host: str, tmp_path: Path
) -> None:
    found = risks(kind, table, host, tmp_path)
    assert [each.partition(": ")[0] for each in found] == ([] if option is None else [f"sinks.x.{option}"])
    for each in found:
        assert host in each
        assert "; " in each, "a cure"
        assert PASSWORD not in each


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "db.localhost"])
@pytest.mark.parametrize(("kind", "table", "option"), REMOTE)
def test_nobody_is_on_the_way_to_this_machine(
    kind: type[Sink], table: dict[str, Any], option: str | None, host: str, tmp_path: Path
) -> None:
    assert risks(kind, table, host, tmp_path) == []


def test_this_machine_has_many_names() -> None:
    assert all(map(is_local, ["", "localhost", "LOCALHOST.", "a.localhost", "127.8.9.1", "[::1]", "/run/postgresql"]))
    assert all(map(is_local, ["::1", "[::ffff:127.0.0.1]", "%2Frun%2Fpostgresql"]))
    assert not any(map(is_local, ["db", "10.0.0.1", "0.0.0.0", "[::2]", "localhost.example", "127.0.0.1.example"]))
    assert not any(map(is_local, ["::2", "[::ffff:10.0.0.1]", "%2e%2e"]))


def test_a_sink_that_cannot_tell_its_risks_is_a_warning() -> None:
    (found,) = sink_risks(Faulty("x", Faulty.Options()))
    assert (found.name, found.status) == ("x", "warning")
    assert "no idea" in found.text
