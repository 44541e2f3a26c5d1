"""Whether the files of an import have records of ingestd or messages of an intake.

A visitor can put any members into a message, so that it looks like a record. A record is trusted: it says whether it
was signed, and of which tenant it is. So the form belongs to the files, and never to a line.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice

import msgspec

from ingestd.api.errors import CommandError
from ingestd.api.intake import Intake
from ingestd.support.names import hint
from ingestd.validation.validator import UNREADABLE

from .lines import InputFile, Line

__all__ = ["RECORD", "intake_of"]

RECORD = "record"


class _Head(msgspec.Struct, gc=False):
    """What each record has, and no message by itself."""

    tenant: str
    type: str


_decode = msgspec.json.Decoder(_Head).decode


def intake_of(
    files: Sequence[InputFile], format_: str | None, tenant: str | None, intakes: Collection[Intake]
) -> Intake | None:
    """The intake whose messages the files have. None: they have records.

    `format_` says it. Without it the files must be either of messages, or of records without a single message. Raises
    `CommandError` if they are neither, and for messages without a tenant.
    """
    able = {each.endpoint.value: each for each in intakes if type(each).begin_import is not Intake.begin_import}
    if format_ is None:
        if not able or _have_records(files, " or ".join(sorted(able)), tenant):
            return None
        if len(able) > 1:
            raise CommandError(f"the files have no records of ingestd: say --format {' or '.join(sorted(able))}")
        format_ = next(iter(able))
    intake = _named(format_, able)
    if intake is not None and tenant is None:
        raise CommandError(
            f"the files have messages in the format {intake.endpoint.value}, which name no shop: say with --tenant"
            " whose messages these are, or --format record if they are records of ingestd"
        )
    return intake


def _named(name: str, able: Mapping[str, Intake]) -> Intake | None:
    if name == RECORD:
        return None
    if name not in able:
        raise CommandError(f"there is no format {name!r}; {hint(name, [RECORD, *sorted(able)])}")
    return able[name]


def _have_records(files: Sequence[InputFile], formats: str, tenant: str | None) -> bool:
    """Whether the files have records, by the first line of each. If so, each other line must be a record too."""
    firsts = [each for file in files for each in islice(_line_forms(file), 1)]
    record = next((line for line, is_record in firsts if is_record), None)
    if record is None:
        return not firsts and tenant is None
    others = (line for file in files for line, is_record in _line_forms(file) if not is_record)
    other = next(others, None)
    if other is not None:
        why = f"{other.file}:{other.number} does not"
    elif tenant is not None and (pipe := next((file.name for file in files if file.is_pipe), None)) is not None:
        why = f"{pipe} is a pipe, which can be read only once"
    else:
        return True
    raise CommandError(
        f"{record.file}:{record.number} looks like a record of ingestd, but {why};"
        f" a visitor can make a message look so: say --format {formats} or --format {RECORD}"
    )


def _line_forms(file: InputFile) -> Iterator[tuple[Line, bool]]:
    """The lines that are JSON, and whether each looks like a record; of a pipe no more than the first."""
    lines = file.lines() if not file.is_pipe else filter(None, [file.first()])
    for line in lines:
        try:
            _decode(line.content)
        except msgspec.ValidationError:
            yield line, False
        except UNREADABLE:
            continue
        else:
            yield line, True
