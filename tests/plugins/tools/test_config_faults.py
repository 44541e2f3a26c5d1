"""Every fault of a configuration is found, regardless of other faults."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st

from ingestd.plugins.tools.check.config_faults import every_fault
from tests.support.examples import examples

# Faulty lines by section, each with the expected message.
FAULTS = {
    ("http", "lisen = 1"): "http.lisen: unknown option; did you mean http.listen?",
    ("plugins.sqlite", "cache = 1000"): "plugins.sqlite.cache: unknown option; it is always 200000 now",
    ("http", 'max_body = "0B"'): "http.max_body: expected more than 0",
    ("http", "trusted_proxies = [1]"): "http.trusted_proxies",
    ("journal", 'on_full = "weep"'): "journal.on_full: expected one of 'refuse', 'drop'",
    ("store", 'url = "sqlit:x.db"'): "store.url: there is no plugin 'sqlit'",
    ("plugins.session", 'idle = "0s"'): "plugins.session.idle: expected more than 0",
    ("plugins.sesion", ""): "plugins.sesion: no such plugin; did you mean plugins.session?",
    ("sinks.one", 'type = "jsnol"'): "sinks.one.type: there is no plugin 'jsnol'",
    ("sinks.two", 'type = "jsonl"'): "sinks.two.path: must be given",
    ("htpp", ""): "htpp: unknown option; did you mean http?",
}
SOUND = {
    ("http", "max_waiting = 5000"),
    ("journal", 'keep_for = "30d"'),
    ("plugins.sqlite", 'cache_size = "8MiB"'),
    ("sinks.sound", 'type = "jsonl"\npath = "sound.jsonl"'),
}


@given(faults=st.sets(st.sampled_from([*FAULTS])), sound=st.sets(st.sampled_from([*SOUND])))
@examples(15)
def test_every_fault_is_reported_once(faults: set[tuple[str, str]], sound: set[tuple[str, str]]) -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "ingestd.toml"
        lines = faults | sound
        sections = sorted({section for section, _ in lines})
        file.write_text(
            "".join(f"[{each}]\n" + "".join(f"{line}\n" for name, line in lines if name == each) for each in sections)
        )
        told = every_fault(file, [])
    assert len(told) == len(faults)
    for fault in faults:
        assert [message.startswith(f"{file}: {FAULTS[fault]}") for message in told].count(True) == 1


def test_a_faulty_option_of_a_plugin_does_not_hide_that_the_plugin_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "ingestd.toml"
    enabled = '["keys", "hmac_auth", "identity", "session", "sqlite"]'
    file.write_text(f'[plugins]\nalso = ["bots"]\nenabled = {enabled}\n[plugins.bots]\nacton = "mark"\n')
    (told,) = every_fault(file, [])
    assert told == f"{file}: plugins.bots.acton: unknown option; did you mean plugins.bots.action?"


def test_invalid_toml_and_wrong_arguments_of_set_are_faults_too(tmp_path: Path) -> None:
    file = tmp_path / "ingestd.toml"
    file.write_text("[http")
    (told,) = every_fault(file, [])
    assert told.startswith(f"{file}: not TOML: ")
    file.write_text("")
    assert every_fault(file, []) == []
    told, other = every_fault(file, ["http.max_body=1", "ops.lisen=1"])
    assert told.startswith("--set http.max_body: expected a number with a unit")
    assert other.startswith("--set ops.lisen: unknown option")
