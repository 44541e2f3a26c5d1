"""The errors of librdkafka and of the brokers: whose fault they are, and their text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ingestd.api.errors import SinkFailure, SinkRetry

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

__all__ = ["ALL_BROKERS_DOWN", "CONSEQUENCES", "HOPELESS", "TOO_LARGE", "failure", "plain"]

# Codes of the brokers, see https://kafka.apache.org/protocol#protocol_error_codes. librdkafka's own are negative.
TOO_LARGE = 10
CONSEQUENCES = {-148, -150, -151, -152}
"""The producer or its queue has ended after the error of another message."""
ALL_BROKERS_DOWN = -187
HOPELESS = {-169, -181, ALL_BROKERS_DOWN}
"""Wrong credentials, a failed TLS handshake, and no connection to any known broker."""

_CONTENT = {2, 32, 87}  # a corrupt message, a time that the topic does not take, an invalid record
"""Errors that may be the fault of a record. All others are those of the cluster, its topics, rights and quotas."""


def failure(error: KafkaError) -> SinkRetry | SinkFailure:
    """The exception to raise for an error."""
    return (SinkFailure if error.code() in _CONTENT else SinkRetry)(plain(error))


def plain(error: KafkaError) -> str:
    """The text without durations, so that equal errors have equal texts."""
    text = re.sub(r" \(after [^)]*\)|, \d+ identical error\(s\) suppressed", "", error.str())
    return f"{text} ({error.name()})" if error.code() > 0 else text
