"""The options of the kafka sink: logins and TLS with a real broker, and wrong ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ingestd.api.errors import ConfigError, SinkRetry
from ingestd.api.options import Secret
from ingestd.plugins.sinks.kafka import KafkaSink
from ingestd.testing.sinks import make_records
from tests.support.kafka_sink import Kafka, make, opened, until_written
from tests.support.sinks import configured, values

DOCS = (Path(__file__).parents[4] / "docs" / "sinks" / "kafka.md").read_text()


# Logins, rights and TLS


@pytest.mark.parametrize(
    ("sasl", "user", "listener"),
    [("PLAIN", "plain", "LOGIN_TLS"), ("SCRAM-SHA-256", "shop", "LOGIN"), ("SCRAM-SHA-512", "shop", "LOGIN_TLS")],
)
async def test_a_login_is_used_and_a_wrong_one_is_reported(
    kafka: Kafka, topic: str, impatient: None, sasl: str, user: str, listener: str
) -> None:
    kafka.cluster.create(topic)
    kafka.cluster.allow("shop", "WRITE", topic)
    brokers = [f"localhost:{kafka.ports[listener]}"]
    login: dict[str, Any] = {"user": user, "sasl": sasl}
    if listener == "LOGIN_TLS":
        login["ca_file"] = kafka.certificate
    async with opened(brokers, topic, password=Secret("correct"), **login) as sink:
        await until_written(sink, make_records(1))  # a broker that has just started is slow
        await sink.check()
    sink = make(brokers, topic, password=Secret("hunter2"), **login)
    for attempt in (sink.open, sink.check):
        with pytest.raises(SinkRetry, match=r"uthentication") as raised:
            await attempt()
        assert "hunter2" not in str(raised.value)
    await sink.close()
    assert len(kafka.cluster.records(topic)) == 1


async def test_a_user_needs_the_documented_rights_and_missing_rights_are_reported(kafka: Kafka, topic: str) -> None:
    assert "The user needs `WRITE` on the topic, and with `create` also `CREATE`" in DOCS
    login: dict[str, Any] = {"user": "shop", "password": Secret("correct")}
    brokers = [f"localhost:{kafka.ports['LOGIN']}"]
    with pytest.raises(SinkRetry, match=rf"^the topic {topic} cannot be .*\(TOPIC_AUTHORIZATION_FAILED\)$"):
        await make(brokers, topic, **login).open()
    kafka.cluster.allow("shop", "DESCRIBE", topic)
    with pytest.raises(SinkRetry, match=r"cannot be created: .*\(TOPIC_AUTHORIZATION_FAILED\)$"):
        await make(brokers, topic, **login).open()
    kafka.cluster.allow("shop", "CREATE", topic)
    async with opened(brokers, topic, **login) as sink:
        batch = make_records(3)
        # A broker refuses the id of the producer or the records, whichever it is asked for first.
        with pytest.raises(SinkRetry, match=r"\((?:TOPIC|CLUSTER)_AUTHORIZATION_FAILED\)$"):
            await sink.write(batch)
        kafka.cluster.allow("shop", "WRITE", topic)
        await until_written(sink, batch)
    assert kafka.cluster.records(topic) == values(batch)


async def test_tls_with_a_private_certificate(kafka: Kafka, topic: str, impatient: None) -> None:
    port, mutual = kafka.ports["TLS"], kafka.ports["MUTUAL_TLS"]
    key = kafka.certificate.with_name("localhost-key.pem")
    async with opened([f"localhost:{port}"], topic, ca_file=kafka.certificate) as sink:
        await until_written(sink, make_records(1))
    async with opened(
        [f"localhost:{mutual}"], topic, ca_file=kafka.certificate, certificate=kafka.certificate, certificate_key=key
    ) as sink:
        await until_written(sink, make_records(1))
    assert len(kafka.cluster.records(topic)) == 2
    for brokers, options in (
        ([f"localhost:{port}"], {"tls": True}),
        ([f"127.0.0.1:{port}"], {"ca_file": kafka.certificate}),  # the certificate is for another name
        ([f"localhost:{mutual}"], {"ca_file": kafka.certificate}),
        ([f"127.0.0.1:{kafka.cluster.brokers[0].port}"], {"tls": True}),
    ):
        with pytest.raises(SinkRetry, match=r"(?i)ssl|disconnect"):
            await make(brokers, topic, **options).open()


# Options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, None),
        ({"topic": "{tenant}.{type}"}, None),
        ({"brokers": ["[::1]:9092", "b:1"], "partitions": 12, "replicas": 3, "compression": "zstd"}, None),
        ({"brokers": []}, "brokers"),
        ({"brokers": ["host"]}, r"brokers\[0\]: expected a host and a port"),
        ({"brokers": ["host:9092", "user:hunter2@host:9092"]}, r"brokers\[1\]: expected a host and a port"),
        ({"brokers": ["kafka://host:9092"]}, r"brokers\[0\]: expected a host and a port"),
        ({"brokers": ["a:1,b:1"]}, r"brokers\[0\]: expected a host and a port"),
        ({"topic": ""}, "topic: expected 1 to 249 letters"),
        ({"topic": "a b"}, "topic: expected 1 to 249 letters"),
        ({"topic": ".."}, "topic: expected 1 to 249 letters"),
        ({"topic": "a" * 250}, "topic: expected 1 to 249 letters"),
        ({"topic": "a.{name}"}, r"topic: expected no {} except {type}, {tenant} and {key}"),
        ({"topic": "a.{key}"}, None),
        ({"schema_registry": "ftp://host"}, r"schema_registry: expected an HTTP URL"),
        ({"schema_registry": "http://u:hunter2@host?x=1"}, r"schema_registry: takes no parameters"),
        ({"partitions": 0}, "partitions"),
        ({"compression": "brotli"}, "compression"),
        ({"sasl": "GSSAPI"}, "sasl"),
        ({"user": "shop"}, "password: give both user and password, or neither"),
        ({"password": "hunter2"}, "user: give both user and password, or neither"),
        ({"user": "", "password": "hunter2"}, "user: expected a name"),
        ({"ca_file": "none.pem"}, r"ca_file: .*none\.pem cannot be used: .*No such file"),
        ({"ca_file": "bad.pem"}, r"ca_file: .*bad\.pem cannot be used"),
        ({"certificate": "bad.pem"}, "certificate_key: give both certificate and certificate_key, or neither"),
        ({"certificate_key": "bad.pem"}, "certificate: give both certificate and certificate_key, or neither"),
        ({"certificate": "bad.pem", "certificate_key": "bad.pem"}, r"certificate: .*bad\.pem cannot be used"),
        ({"broker": "x"}, "broker: unknown option; did you mean sinks.bus.brokers"),
    ],
)
def test_invalid_options_are_refused(tmp_path: Path, options: dict[str, Any], message: str | None) -> None:
    (tmp_path / "bad.pem").write_text("nothing")
    table = {"brokers": ["host:9092"], **options}
    if message is None:
        configured(KafkaSink, "bus", table, tmp_path)
    else:
        with pytest.raises(ConfigError, match=rf"sinks\.bus\.{message}") as raised:
            configured(KafkaSink, "bus", table, tmp_path)
        assert "hunter2" not in str(raised.value)


def test_a_missing_library_is_reported_with_the_command_to_install_it() -> None:
    program = """
import sys
sys.modules["confluent_kafka"] = None
from ingestd.plugins.sinks.kafka import KafkaSink
KafkaSink("bus", KafkaSink.Options(brokers=("host:9092",)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (
        "ConfigError: sinks.bus.type: needs confluent-kafka, which is not installed: pip install '.[kafka]' in"
        " ingestd's source" in done.stderr
    )
