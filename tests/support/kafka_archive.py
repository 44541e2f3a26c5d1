"""What each broker of Apache Kafka needs for its start, made once: formatted data, and an archive of its classes."""

from __future__ import annotations

import asyncio
import shutil
import signal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ingestd.api.options import Secret
from ingestd.testing.sinks import make_records

from .kafka_cluster import ARCHIVE, CLASSES, FORMATTED, KafkaCluster
from .kafka_sink import Kafka, broker_with_logins, opened, until_written

__all__ = ["make_archive"]


def make_archive() -> None:
    """A broker writes the archive when it ends. It has the classes of all that this one has done, such as logins."""
    shutil.rmtree(FORMATTED, ignore_errors=True)
    with TemporaryDirectory() as folder:
        cluster = KafkaCluster(Path(folder) / "formatted")
        cluster.format()
        shutil.copytree(cluster.brokers[0].data, FORMATTED)
        ARCHIVE[:] = [f"-XX:ArchiveClassesAtExit={CLASSES}"]
        with broker_with_logins(Path(folder)) as kafka:
            asyncio.run(_use(kafka))
            (broker,) = kafka.cluster.brokers
            broker.signal(signal.SIGTERM)
            broker.wait_until_ended()


async def _use(kafka: Kafka) -> None:
    """Writes and reads by each listener, since each has classes of its own."""
    key = kafka.certificate.with_name("localhost-key.pem")
    of_client: dict[str, Any] = {"certificate": kafka.certificate, "certificate_key": key}
    listeners: dict[str, dict[str, Any]] = {
        "TLS": {},
        "MUTUAL_TLS": of_client,
        "LOGIN": {"user": "shop", "sasl": "SCRAM-SHA-256"},
        "LOGIN_TLS": {"user": "plain", "sasl": "PLAIN"},
    }
    kafka.cluster.create("events")
    kafka.cluster.allow("shop", "WRITE", "events")
    for name, options in listeners.items():
        if "TLS" in name:
            options["ca_file"] = kafka.certificate
        if "user" in options:
            options["password"] = Secret("correct")
        async with opened([f"localhost:{kafka.ports[name]}"], "events", create=False, **options) as sink:
            await until_written(sink, make_records(1))
    kafka.cluster.messages("events")
