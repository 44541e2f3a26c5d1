"""`ingestd completion`: real shells complete commands (also of a third party's plugin), options and file names."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
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
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a plugin's configuration, and the scripts for all shells."""
    folder = tmp_path_factory.mktemp("completion")
    site = write_distribution(
        folder / "site", "greeting", modules={"greeting": GREETING}, plugins={"greeting": "greeting"}
    )
    (folder / "ingestd.toml").write_text('[plugins]\nalso = ["greeting"]\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(site))
        patch.delenv("INGESTD_CONFIG", raising=False)
        for shell, name in (("bash", "complete.bash"), ("zsh", "_ingestd"), ("fish", "complete.fish")):
            (folder / name).write_text(script(shell, folder))
    return folder


@pytest.fixture(scope="module")
def in_bash(folder: Path) -> Complete:
    """Completes the last word in a real bash."""
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


@pytest.fixture(scope="module")
def in_fish(folder: Path) -> Complete:
    """Completes the last word in a real fish."""

    def completed(*words: str) -> list[str]:
        line = " ".join(["ingestd", *words])
        body = f"source complete.fish; complete -C '{line}'"
        environment = {**os.environ, "HOME": str(folder)}
        done = subprocess.run(
            ["fish", "--no-config", "-c", body],
            cwd=folder, env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return sorted(line.split("\t")[0] for line in done.stdout.splitlines())

    return completed


SETUP_OF_ZSH = """
fpath=($PWD $fpath)
autoload -Uz compinit && compinit -D -u
compadd() {
  local -a found
  if [[ " ${(j: :)@[1,(i)(-|--)]} " != *" -"[OAD]" "* ]]; then
    builtin compadd -A found "$@"
    print -rl -- $found >> found
  fi
  builtin compadd "$@"
}
try() {
  local line
  for line in "${(@f)$(<lines)}"; do
    print -r -- "> $line" >> found
    BUFFER=$line CURSOR=$#line
    zle list-choices
  done
  exit
}
zle -N try
bindkey '^T' try
"""


@pytest.fixture(scope="module")
def in_zsh(folder: Path) -> Complete:
    """Completes the last word in a real zsh, which needs a terminal and completes all lines of `CASES` at once."""
    (folder / "setup.zsh").write_text(SETUP_OF_ZSH)
    (folder / "lines").write_text("".join(f"{' '.join(['ingestd', *words])}\n" for words, _ in CASES))
    ours, theirs = os.openpty()
    environment = {**os.environ, "TERM": "dumb", "HOME": str(folder)}
    zsh = subprocess.Popen(
        ["zsh", "-f", "-i"], stdin=theirs, stdout=theirs, stderr=theirs,
        cwd=folder, env=environment, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    os.write(ours, b"source ./setup.zsh\n\x14")
    with suppress(OSError):  # the end of the terminal
        while os.read(ours, 65536):
            pass
    os.close(ours)
    assert zsh.wait(30) == 0
    found = {}
    for part in (folder / "found").read_text().split("> ")[1:]:
        line, *candidates = part.splitlines()
        found[line] = sorted({*candidates})  # zsh asks for files twice

    return lambda *words: found[" ".join(["ingestd", *words])]


CASES = [
    (["se"], ["serve"]),
    (["sinks", "re"], ["replay", "resume"]),
    (["sinks", "dead-letters", ""], ["discard", "list", "retry", "show"]),
    (["keys", "create", "--kind", ""], ["public", "server"]),
    (["keys", "create", "--kind", "public", "--ten"], ["--tenant"]),
    (["check", "--config", "ing"], ["ingestd.toml"]),
    (["reload", "--directory", ""], ["site"]),
    (["greet", ""], ["hello"]),
    (["greet", "hello", "--list", "complete.b"], ["complete.bash"]),
]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes(shell: str, request: pytest.FixtureRequest) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    complete = request.getfixturevalue(f"in_{shell}")
    completed = {" ".join(words): [each.rstrip("/") for each in complete(*words)] for words, _ in CASES}
    assert completed == {" ".join(words): expected for words, expected in CASES}


def test_a_faulty_configuration_stops_completion_only_if_it_was_named(tmp_path: Path) -> None:
    (tmp_path / "ingestd.toml").write_text("[http")
    assert "sinks" in script("bash", tmp_path)
    done = run_ingestd("completion", "bash", "--config", "ingestd.toml", folder=tmp_path)
    assert (done.returncode, done.stdout) == (78, "")
    assert "not TOML" in done.stderr
