"""docs/metrics.md and docs/api.md have the same closed lists as the code.

tests/acceptance/test_metrics.py compares the metrics of a running daemon with the document.
"""

from __future__ import annotations

import re
from pathlib import Path

from ingestd.api import errors
from ingestd.api.events import Endpoint
from ingestd.api.outcomes import IgnoredTimestamp, Outcome, Refusal
from ingestd.observability.unusable_id_reports import IdField
from ingestd.plugins.segment.intake import SegmentIntake
from tests.support.scrape import documented, documented_labels, tables

API = Path(__file__).parents[2] / "docs" / "api.md"


def test_every_outcome_is_documented() -> None:
    assert {row[0].strip("`") for row in tables()["outcome"]} == {outcome.value for outcome in Outcome}


def test_every_refusal_is_documented() -> None:
    assert documented()["ingestd_http_refused_total"].values == {refusal.value for refusal in Refusal}


def test_every_reason_to_ignore_a_timestamp_is_documented() -> None:
    assert documented()["ingestd_timestamps_ignored_total"].values == {reason.value for reason in IgnoredTimestamp}


def test_every_field_of_an_unusable_id_is_documented() -> None:
    assert documented()["ingestd_unusable_ids_total"].values == {field.value for field in IdField}


def test_every_endpoint_is_documented() -> None:
    batches = {endpoint.operation(batch=True) for endpoint in (Endpoint.TRACK, Endpoint.CUSTOMER_EVENTS)}
    assert documented_labels()["endpoint"] == {
        *(endpoint.value for endpoint in Endpoint.BUILT_IN), *batches, SegmentIntake.endpoint.value,
    }  # fmt: skip


def test_every_label_is_documented_and_every_documented_label_is_used() -> None:
    assert {*documented_labels()} == {label for metric in documented().values() for label in metric.labels}


def test_every_status_with_its_code_is_documented() -> None:
    statuses: dict[int, set[str]] = {}
    for line in API.read_text().splitlines():
        match = re.match(r"\| (\d{3}) \| (.*?) \|", line)
        if match is not None:
            statuses.setdefault(int(match[1]), set()).update(re.findall(r"`(\w+)`", match[2]))
    for name in errors.__all__:
        error = getattr(errors, name)
        if isinstance(error, type) and issubclass(error, errors.Refused) and hasattr(error, "status"):
            if error in {errors.BadRequest, errors.Forbidden, errors.Limited}:
                continue  # raised with different codes, or by plugins only
            assert error.code in statuses[error.status], name
