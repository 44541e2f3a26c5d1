"""The order of an import: files are merged by time, and state can be made later, or after an interruption."""

from __future__ import annotations

import gzip
import json
import os
import random
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.api.errors import CommandError
from ingestd.api.times import format_time
from ingestd.plugins.tools.importing.importer import Importer
from tests.support.examples import examples
from tests.support.import_target import Target
from tests.support.imports import lines_of, message, written

START = 1_700_000_000_000
MINUTE = 60_000


def at(minutes: float, **members: Any) -> dict[str, Any]:
    """A message received so many minutes after the start."""
    time = format_time(START + int(minutes * MINUTE))
    return message(0, **{"messageId": f"m-{minutes}", "timestamp": time, "receivedAt": time, **members})


def visit(minutes: float, visitor: str, source: str) -> dict[str, Any]:
    return at(minutes, anonymousId=visitor, context={"campaign": {"source": source}})


def order(minutes: float, visitor: str) -> dict[str, Any]:
    properties = {"order_id": f"o-{minutes}", "revenue": 5, "currency": "EUR"}
    return at(minutes, anonymousId=visitor, event="Order Completed", properties=properties)


@st.composite
def histories(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Visits, links and orders of a few visitors, by time. No two are at the same time."""
    gaps = draw(st.lists(st.sampled_from([0.05, 0.5, 3, 45, 600]), min_size=1, max_size=60))
    minutes, lines = 0.0, []
    for gap in gaps:
        minutes = round(minutes + gap, 2)
        visitor = draw(st.sampled_from(["v-1", "v-2", "v-3"]))
        kind = draw(st.sampled_from(["visit", "visit", "order", "identify"]))
        if kind == "visit":
            lines.append(visit(minutes, visitor, draw(st.sampled_from(["news", "ads"]))))
        elif kind == "order":
            lines.append(order(minutes, visitor))
        else:
            lines.append(
                at(minutes, type="identify", anonymousId=visitor, userId=draw(st.sampled_from(["u-1", "u-2"])))
            )
    return lines


def shuffled(history: Sequence[dict[str, Any]], folder: Path, chance: random.Random) -> list[Path]:
    """Two folders of files. Lines of a file are out of order by less than a minute."""
    folders = [folder / name for name in ("server", "web")]
    for each in folders:
        lines = [line for line in history if chance.random() < 0.5 or each is folders[1]]
        history = [line for line in history if line not in lines]
        files = chance.sample(range(1000), 1 + len(lines) // 4)
        for number, start in zip(files, count(0, 4), strict=False):
            part = sorted(lines[start : start + 4], key=lambda line: late(line, chance.random()))
            content = lines_of(part)
            each.mkdir(exist_ok=True)
            (each / f"{number}.json.gz").write_bytes(gzip.compress(content) if chance.random() < 0.5 else content)
    chance.shuffle(folders)
    return folders


def late(line: dict[str, Any], share: float) -> float:
    """The time at which a line may come, in minutes."""
    return float(line["messageId"][2:]) + 0.98 * share


def without_marks(records: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Records by their ids. The import's own time differs, and so does the order of some equal records."""
    return {record["id"]: {name: value for name, value in record.items() if name != "import"} for record in records}


@examples(12)
@given(history=histories(), seed=st.integers(0, 1000))
def test_two_shuffled_folders_give_the_sessions_and_attributions_of_the_sorted_history(
    history: list[dict[str, Any]], seed: int
) -> None:
    with TemporaryDirectory() as folder:
        inorder, merged, later = (Target(Path(folder), name) for name in ("inorder", "merged", "later"))
        folders = shuffled(history, Path(folder), random.Random(seed))
        inorder.take(history, tenant="shop", state=True)
        wanted = inorder.attribute()
        merged.take(*folders, tenant="shop", state=True)
        assert merged.attribute() == wanted
        assert without_marks(merged.exported()) == without_marks(inorder.exported())
        # What was stored without state gets it later, from the files or from an export.
        later.take(*folders, tenant="shop")
        assert later.attribute() == []
        later.take(*folders, tenant="shop", state=True)
        assert later.attribute() == wanted
        assert without_marks(later.exported()) == without_marks(inorder.exported())
        later.take(*folders, tenant="shop", state=True)
        assert later.attribute() == wanted
        again = Target(Path(folder), "again")
        records = written(Path(folder), later.exported())
        again.take(records)  # the attributions of the file are history, until they are derived
        assert [record["id"] for record in again.attribute()] == [record["id"] for record in wanted]
        again.take(records, state=True)
        assert again.attribute() == wanted


@pytest.mark.parametrize("chunks", [1, 2])
def test_an_interrupted_import_goes_on_as_if_it_had_never_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunks: int
) -> None:
    server = [order(number, f"v-{number % 50}") for number in range(10, 400, 3)]
    web = [visit(number + 0.5, f"v-{number % 50}", f"s-{number}") for number in range(400)]
    files = written(tmp_path / "a", server), written(tmp_path / "b", web)
    whole, parts = Target(tmp_path, "whole"), Target(tmp_path, "parts")
    whole.take(*files, tenant="shop", state=True)
    take, left = Importer.take, chunks

    async def dying(self: Importer, chunk: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        await take(self, chunk)

    monkeypatch.setattr(Importer, "take", dying)
    with pytest.raises(KeyboardInterrupt):
        parts.take(*files, tenant="shop", state=True)
    monkeypatch.setattr(Importer, "take", take)
    assert len(parts.exported()) == 250 * chunks
    parts.take(*files, tenant="shop", state=True)
    assert parts.attribute() == whole.attribute()
    assert without_marks(parts.exported()) == without_marks(whole.exported())


def test_the_copies_of_an_interrupted_import_are_marked_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(record: dict[str, Any]) -> NoReturn:
        raise KeyboardInterrupt

    target, files = Target(tmp_path, "target"), written(tmp_path, [visit(1, "v", "news"), order(2, "v")])
    target.take(files, tenant="shop")
    with monkeypatch.context() as patched:
        patched.setattr("ingestd.plugins.tools.importing.known_records.completed", interrupt)
        with pytest.raises(KeyboardInterrupt):
            target.take(files, tenant="shop", state=True)
    assert len(target.exported()) == 4
    target.take(files, tenant="shop", state=True)
    assert [record["sessionId"] is None for record in target.exported()] == [False, False]


def test_a_file_that_goes_back_behind_an_order_is_not_imported(tmp_path: Path) -> None:
    target = Target(tmp_path, "target")
    late, soon = visit(1, "v", "news"), visit(9.5, "v", "mail")
    with pytest.raises(CommandError) as caught:
        target.take([order(10, "v"), visit(12, "v", "ads"), late], [visit(11, "w", "ads")], tenant="shop", state=True)
    folder = tmp_path / "target"
    assert f"{folder}/lines-0.jsonl:3 has the time 2023-11-14T22:14:20.000Z" in str(caught.value)
    assert f"the order of 2023-11-14T22:23:20.000Z in {folder}/lines-0.jsonl:1" in str(caught.value)
    assert target.exported() == []
    # Back behind no order, or only a little; or the operator knows.
    target.take([visit(20, "v", "ads"), late], tenant="shop", state=True)
    target.take([order(10, "v"), soon], tenant="shop", state=True)
    (attribution,) = target.attribute()
    assert attribution["touchpoint"]["at"] == soon["timestamp"]
    target.take([order(40, "w"), visit(30, "w", "news")], tenant="shop", state=True, unordered=True)
    assert len(target.attribute()) == 2


def test_lines_without_a_time_stay_where_they_are(tmp_path: Path) -> None:
    target = Target(tmp_path, "target")
    odd = [b"{", visit(1, "v", "a") | {"receivedAt": "9999-01-01T00:00:00Z"}, {}, b"\xff"]
    lines = [visit(5, "v", "news"), *odd, order(6, "v")]
    file = tmp_path / "lines"
    file.write_bytes(b"".join(line + b"\n" if isinstance(line, bytes) else lines_of([line]) for line in lines))
    with pytest.raises(CommandError, match="4 lines were not imported"):
        target.take(file, [visit(5.5, "v", "ads")], tenant="shop", state=True)
    (attribution,) = target.attribute()
    assert attribution["touchpoint"]["source"] == "ads"


def test_records_of_a_journal_keep_its_order(tmp_path: Path) -> None:
    first, second = Target(tmp_path, "first"), Target(tmp_path, "second")
    # The order was stored before the visit, which had been received a little earlier.
    first.take([order(10, "v"), visit(9.9, "v", "news")], tenant="shop")
    exported = first.exported()
    assert [record["key"] for record in exported] == ["Order Completed", "Product Viewed"]
    second.take(exported[:1], exported[1:], state=True)
    assert [record["key"] for record in second.exported()] == ["Product Viewed", "Order Completed"]
    third = Target(tmp_path, "third")
    third.take(exported, state=True)
    assert [record["key"] for record in third.exported()] == ["Order Completed", "Product Viewed"]


def test_what_an_import_left_undone_is_made_from_a_sorted_export(tmp_path: Path) -> None:
    files = [order(12, "v"), order(700, "v")], [visit(11, "v", "news"), visit(11.5, "v", "ads"), visit(650, "v", "ads")]
    whole, later = Target(tmp_path, "whole"), Target(tmp_path, "later")
    whole.take(*files, tenant="shop", state=True)
    later.take(*files, tenant="shop")
    with pytest.raises(CommandError, match="comes after the order"):
        later.take(later.exported(), state=True)
    later.take(sorted(later.exported(), key=lambda record: str(record["receivedAt"])), state=True)
    assert later.attribute() == whole.attribute()
    assert without_marks(later.exported()) == without_marks(whole.exported())


def test_a_moved_shop_can_get_its_state_later(tmp_path: Path) -> None:
    first, second, third = (Target(tmp_path, name) for name in ("first", "second", "third"))
    link = at(13, type="identify", anonymousId="w", userId="u")
    first.take([visit(11, "v", "news"), order(12, "v"), link, order(14, "w")], tenant="shop", state=True)
    wanted = without_marks(first.attribute())
    moved = first.exported()
    second.take(moved)  # the attributions are history
    assert without_marks(second.attribute()) == wanted
    assert len(second.exported()) == len(moved)
    second.take(moved, state=True)
    third.take(moved, state=True)
    assert without_marks(second.attribute()) == without_marks(third.attribute()) == wanted
    assert without_marks(second.exported()) == without_marks(third.exported()) == without_marks(moved)


def test_a_pipe_is_merged_too(tmp_path: Path) -> None:
    target = Target(tmp_path, "target")
    reading, writing = os.pipe()
    os.write(writing, lines_of([visit(1, "v", "news")]))
    os.close(writing)
    target.take([order(2, "v")], Path(f"/dev/fd/{reading}"), tenant="shop", state=True)
    os.close(reading)
    assert target.attribute()[0]["touchpoint"]["source"] == "news"


def test_many_files_whose_times_overlap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(tmp_path, "target")
    folder = tmp_path / "many"
    for number in range(60):
        written(folder, [visit(number, f"v-{number}", "news"), order(100 + number, f"v-{number}")], f"{number}.jsonl")
    target.take(folder, tenant="shop", state=True)
    assert [each["touchpoint"]["source"] for each in target.attribute()] == ["news"] * 60
    monkeypatch.setattr("ingestd.plugins.tools.importing.time_order._MOST_OPEN", 59)
    with pytest.raises(CommandError, match="the times of more than 59 files overlap"):
        target.take(folder, tenant="shop", state=True)


def test_the_summary_counts_events_places_and_what_state_would_make(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "files"
    products = [{"price": "x"}, {"price": 1}, {"price": "y"}]
    bad = [
        at(3, properties={"order_id": "o", "products": products}, event="Order Completed"), at(4, event="Shoe\x1bSeen"),
        at(5, event="Shoe\x1bSeen"),
    ]  # fmt: skip
    folder.mkdir()
    written(folder / "b", [visit(1, "v", "news"), order(2, "v")], "b.jsonl")
    written(folder / "a", bad, "a.json")
    for name in ("notes.txt", ".hidden.json", "x\x1by.csv"):
        (folder / name).write_text("{}")
    target = Target(tmp_path, "target")
    with pytest.raises(CommandError, match="3 lines were not imported"):
        target.take(folder, tenant="shop")
    out, err = capfd.readouterr()
    text = out.replace("\n", " ")
    assert "imported, by event:   Product Viewed   1   Order Completed  1" in text
    assert "  /properties/products/*/price " in text
    assert '/event: "Shoe\N{REPLACEMENT CHARACTER}Seen" is not a supported event key' in text
    assert "orders not attributed: 1, events without a session: 2; to make both, import the same files again" in text
    assert f"left out, since their names end otherwise: {folder}/notes.txt, {folder}/x" in err
    assert f"{out}{err}".replace("\n", "").isprintable()
    with pytest.raises(CommandError):
        target.take(folder, tenant="shop", state=True, json=True)
    told = json.loads(capfd.readouterr().out)
    assert told["counts"] == {"completed": 2, "invalid": 1, "unknown_key": 2}
    assert (told["ordersNotAttributed"], told["eventsWithoutSession"], told["filesLeftOut"]) == (0, 0, 2)
    (tmp_path / "none").mkdir()
    with pytest.raises(CommandError, match="no file below this folder ends in"):
        target.take(tmp_path / "none")
