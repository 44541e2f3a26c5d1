"""`ingestd completion`: real shells complete commands (also of a third party's plugin), options and file names."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.daemon import run_ingestd
from tests.support.distribution import write_distribution

GREETING = """
    from ingestd.api import hookimpl

    async def greet(arguments, daemon):
        print("hello")

    @hookimpl
    def register_commands(commands):
        parser = commands.add("greet", "hello", greet, help="say hello", examples=["ingestd greet hello"])
        parser.add_argument("--list", metavar="FILE", help="a file of names")
"""

Complete = Callable[..., list[str]]


def script(shell: str, folder: Path, *arguments: str) -> str:
    done = run_ingestd("completion", shell, *arguments, folder=folder)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Complete:
    """Completes the last word in a real bash, in a folder with a plugin's configuration."""
    folder = tmp_path_factory.mktemp("completion")
    site = write_distribution(
        folder / "site", "greeting", modules={"greeting": GREETING}, plugins={"greeting": "greeting"}
    )
    (folder / "ingestd.toml").write_text('[plugins]\nalso = ["greeting"]\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(site))
        patch.delenv("INGESTD_CONFIG", raising=False)
        (folder / "complete.bash").write_text(script("bash", folder))
    body = """
        source ./complete.bash
        function=$(complete -p ingestd | sed 's/.*-F \\([^ ]*\\).*/\\1/')
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        $function ingestd "${COMP_WORDS[COMP_CWORD]}"
        printf '%s\\n' "${COMPREPLY[@]}"
    """

    def completed(*words: str) -> list[str]:
        done = subprocess.run(
            ["bash", "--norc", "-c", body, "bash", "ingestd", *words],
            cwd=folder, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return sorted(done.stdout.split())

    return completed


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["se"], ["serve"]),
        (["sinks", "re"], ["replay", "resume"]),
        (["sinks", "dead-letters", ""], ["discard", "list", "retry", "show"]),
        (["keys", "create", "--kind", ""], ["public", "server"]),
        (["keys", "create", "--kind", "public", "--ten"], ["--tenant"]),
        (["check", "--config", "ing"], ["ingestd.toml"]),
        (["reload", "--directory", ""], ["site"]),
        (["greet", ""], ["hello"]),
        (["greet", "hello", "--list", "complete.b"], ["complete.bash"]),
    ],
)
def test_bash_completes(words: list[str], expected: list[str], complete: Complete) -> None:
    assert complete(*words) == expected


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_script_has_no_syntax_error_in_other_shells(shell: str, tmp_path: Path) -> None:
    path = tmp_path / "script"
    path.write_text(script(shell, tmp_path))
    assert "dead-letters" in path.read_text()
    if shutil.which(shell) is not None:
        assert subprocess.run([shell, "-n", str(path)], check=False).returncode == 0


def test_a_faulty_configuration_stops_completion_only_if_it_was_named(tmp_path: Path) -> None:
    (tmp_path / "ingestd.toml").write_text("[http")
    assert "sinks" in script("bash", tmp_path)
    done = run_ingestd("completion", "bash", "--config", "ingestd.toml", folder=tmp_path)
    assert (done.returncode, done.stdout) == (78, "")
    assert "not TOML" in done.stderr
