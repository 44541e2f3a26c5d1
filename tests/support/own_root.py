"""A root of its own: this machine's files with changes on top that vanish, no network, and no processes of others."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Self

import pytest

__all__ = ["OwnRoot"]

_MAKE = """
mount -t tmpfs tmpfs "$1"
mkdir "$1/changes" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/changes,workdir=$1/work" "$1/root"
mount -t proc proc "$1/root/proc"
mount --rbind /dev "$1/root/dev"
mount -t tmpfs tmpfs "$1/root/tmp"
mount -t tmpfs tmpfs "$1/root/run"
rm -f "$1/root/var/lib/man-db/auto-update"  # else dpkg indexes all manuals of this machine for each package
ip link set lo up
echo made
exec sleep infinity
"""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class OwnRoot:
    """Commands run in it as root, unless told otherwise. It ends with the context."""

    def __init__(self, folder: Path) -> None:
        if os.geteuid():
            pytest.skip("only root can make a root of its own")
        self._folder = folder
        self.environment = {"PATH": _PATH, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}

    def __enter__(self) -> Self:
        make: list[str | Path] = [
            "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-euc", _MAKE, "sh", self._folder
        ]  # fmt: skip
        self._holder = subprocess.Popen(make, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert self._holder.stdout is not None
        if (told := self._holder.stdout.readline()) != "made\n":
            self.__exit__()
            assert "not permitted" in told or "permission denied" in told, told
            pytest.skip(f"a container may not make a root of its own: {told}")
        self._inside = str(_child(self._holder))
        return self

    def __exit__(self, *exception: object) -> None:
        self._holder.kill()
        self._holder.wait()
        assert self._holder.stdout is not None
        self._holder.stdout.close()

    def command(self, *command: str, chroot: bool = True, user: str = "", folder: str = "/") -> list[str]:
        """The command line that runs it there. With `chroot=False` it sees the files of this machine, too."""
        as_user = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
        root = ["chroot", str(self._folder / "root"), "env", "--chdir", folder, *as_user, *command]
        return ["nsenter", "--mount", "--net", "--pid", "--target", self._inside, *(root if chroot else command)]

    def start(self, *command: str, user: str = "", folder: str = "/") -> subprocess.Popen[str]:
        line = self.command(*command, user=user, folder=folder)
        return subprocess.Popen(line, env=self.environment, stderr=subprocess.PIPE, text=True)

    @staticmethod
    def terminate(started: subprocess.Popen[str]) -> str:
        """Sends SIGTERM to the command itself, not to `nsenter`, which does not pass it on. Returns its log."""
        os.kill(_child(started), signal.SIGTERM)
        _, log = started.communicate(timeout=20)
        assert started.returncode == 0, log
        return log

    def run(self, *command: str, chroot: bool = True, user: str = "", folder: str = "/") -> str:
        """Runs a command, which must succeed, and returns its output."""
        line = self.command(*command, chroot=chroot, user=user, folder=folder)
        done = subprocess.run(line, env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout.strip()

    def copy(self, source: Path | str, target: str) -> None:
        """Copies a file or a folder of this machine into it."""
        self.run("mkdir", "--parents", os.path.dirname(target))
        self.run("cp", "--recursive", str(source), f"{self._folder}/root{target}", chroot=False)

    def write(self, target: str, text: str) -> None:
        self.run("sh", "-c", 'printf %s "$1" >"$2"', "sh", text, target)

    def boot(self) -> None:
        """Boots this machine's systemd there, until it powers off. It needs `systemd-nspawn`."""
        for place in ("dev", "proc", "run", "tmp"):  # systemd-nspawn has its own
            self.run("umount", "--recursive", "--lazy", f"{self._folder}/root/{place}", chroot=False)
        enter = ["nsenter", "--mount", "--target", self._inside]
        nspawn = ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--private-network", "--console=pipe"]
        line = [*enter, *nspawn, "--boot", "--directory", str(self._folder / "root")]
        done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, timeout=300, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def changed(self) -> set[str]:
        """The files that differ from those of this machine, without the lists of dpkg and caches of pages."""
        found = self.run("sh", "-c", f"cd {self._folder}/changes && find . ! -type d", chroot=False).split("\n")
        kept = ("./var/lib/dpkg/", "./var/log/", "./var/cache/man/", "./root/")
        return {name[1:] for name in found if name and not name.startswith(kept)}


def _child(process: subprocess.Popen[str]) -> int:
    return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
