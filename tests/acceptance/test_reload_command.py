"""`ingestd reload` finds the daemons of a configuration, or names the command that reloads them."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from ingestd.daemon.run_file import RunFile, RunState, find_run_files, hold_run_file
from ingestd.plugins.tools.running_daemons import find_daemons
from tests.support.clients import wait_until
from tests.support.daemon import Daemon, Shop, run_ingestd
from tests.support.distribution import write_distribution
from tests.support.forked import INGESTD, Command
from tests.support.init import Init
from tests.support.redis_shop import redis_shop

NOBODY, BIN = 65534, 2
IN_FORCE = "generation {} of the configuration is in force (process {})\n"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    monkeypatch.delenv("INGESTD_CONFIG", raising=False)


def as_user(user: int) -> tuple[str, ...]:
    return ("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups")


def reload_as(user: int, config: Path) -> subprocess.CompletedProcess[str]:
    command = [*as_user(user), INGESTD, "reload", "--config", str(config)]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)


@contextmanager
def open_folder(user: int) -> Iterator[Path]:
    """A folder of the user that everybody can read. pytest's folders are hidden from other users."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        os.chown(folder, user, user)
        yield folder


def run_directories(pid: int) -> list[Path]:
    states = [(file.directory, file.read()) for file in find_run_files()]
    return [directory for directory, state in states if state is not None and state.pid == pid]


def test_the_daemon_is_found_by_its_configuration_wherever_the_command_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(tmp_path)
    text = shop.config.read_text()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "link.toml").symlink_to(shop.config)
    (elsewhere / "ingestd.toml").write_text(text.replace("sqlite:ingestd.db", f"sqlite://{shop.database}"))
    with shop.serve() as daemon:
        generation = 1

        def reloaded(*, folder: Path) -> None:
            nonlocal generation
            generation += 1
            done = run_ingestd("reload", folder=folder)
            assert (done.returncode, done.stdout, done.stderr) == (0, IN_FORCE.format(generation, daemon.pid), "")

        reloaded(folder=tmp_path)  # ./ingestd.toml
        for path in (
            elsewhere / "link.toml",
            elsewhere / "ingestd.toml",
        ):  # the second configuration has the same store
            found = asyncio.run(find_daemons(path, []))
            assert [each.state.pid for each in found.here] == [daemon.pid]
        monkeypatch.setenv("INGESTD_CONFIG", str(shop.config))
        # The RUNTIME_DIRECTORY of another service does not mislead the command.
        monkeypatch.setenv("RUNTIME_DIRECTORY", str(elsewhere))
        reloaded(folder=tmp_path.parent)
        (directory,) = run_directories(daemon.pid)

        shop.config.write_text("[http")
        done = run_ingestd("reload")
        assert done.returncode == 78
        assert f"refused, generation {generation} stays in force: {shop.config}: not TOML" in done.stderr
        shop.config.write_text(text.replace("ingestd.db", "other.db"))
        done = run_ingestd("reload")
        assert done.returncode == 78
        assert "store.url: a reload cannot change it" in done.stderr
        assert not (tmp_path / "other.db").exists()
        shop.config.write_text(text)
    assert not directory.exists()


def test_a_daemon_below_a_supervisor_is_found_by_its_store(tmp_path: Path) -> None:
    """The daemon's RUNTIME_DIRECTORY is outside /run, so the command finds the process by the store's lock."""
    (tmp_path / "runtime").mkdir()
    shop = Shop(tmp_path)
    with Init(shop.config, environment={"RUNTIME_DIRECTORY": str(tmp_path / "runtime")}) as init:
        init.start()
        done = run_ingestd("reload", config=shop.config)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("generation 2 of the configuration is in force")
        assert init.count("RELOADING=1") == 1
        assert init.stop() == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run daemons of other users")
def test_root_reloads_the_daemon_of_a_user_and_other_users_are_shown_the_command() -> None:
    with open_folder(NOBODY) as folder:
        shop = Shop(folder)
        os.chown(shop.database, NOBODY, NOBODY)
        with Daemon(shop.config, prefix=as_user(NOBODY)) as daemon:
            done = run_ingestd("reload", config=shop.config)
            assert done.stdout == IN_FORCE.format(2, f"{daemon.pid} of user nobody")
            assert reload_as(NOBODY, shop.config).stdout == IN_FORCE.format(3, daemon.pid)
            done = reload_as(BIN, shop.config)
            assert (done.returncode, done.stdout) == (1, "")
            assert f"the daemon belongs to user nobody (process {daemon.pid})" in done.stderr
            assert f"run sudo {INGESTD} reload --config {shop.config}" in done.stderr
            assert daemon.metric("ingestd_config_generation") == 3
            # A run file that the user cannot read is not taken for a missing one.
            (directory,) = run_directories(daemon.pid)
            (directory / "ingestd.lock").chmod(0o600)
            done = reload_as(BIN, shop.config)
            assert done.returncode == 75
            assert f"another user's daemon may be hidden: run sudo {INGESTD} reload" in done.stderr
            assert "systemctl reload ingestd" in done.stderr
            assert daemon.terminate() == 0


def test_files_of_a_killed_daemon_are_ignored_if_its_process_id_is_used_again(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    with Daemon(shop.config) as daemon:
        (directory,) = run_directories(daemon.pid)
        daemon.kill()
    left = json.loads((directory / "ingestd.json").read_text())
    assert left["pid"] == daemon.pid
    with subprocess.Popen(["sleep", "60"]) as other:
        (directory / "ingestd.json").write_text(json.dumps({**left, "pid": other.pid}))
        (tmp_path / "ingestd.db.lock").write_text(f"{other.pid} daemon")
        assert asyncio.run(find_daemons(shop.config, [])).here == []
        done = run_ingestd("reload", "--directory", str(directory))
        assert (done.returncode, done.stdout) == (75, "")
        assert f"no daemon runs with the run directory {directory}" in done.stderr
        assert other.poll() is None
        other.kill()


def test_a_plugin_that_cannot_add_its_commands_does_not_stop_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = """
        from ingestd.api import hookimpl

        @hookimpl
        def register_commands(commands):
            raise RuntimeError
    """
    site = write_distribution(tmp_path / "site", "broken", modules={"broken": module}, plugins={"broken": "broken"})
    shop = Shop(tmp_path)
    with shop.serve():
        monkeypatch.setenv("PYTHONPATH", str(site))  # of the command alone: the daemon knows no such plugin
        shop.config.write_text(f'{shop.config.read_text()}\n[plugins]\nalso = ["broken"]\n')
        done = run_ingestd("reload", folder=tmp_path)
    assert (done.returncode, done.stdout) == (78, "")
    assert "refused, generation 1 stays in force" in done.stderr


def test_without_a_daemon_the_command_fails_and_creates_nothing(tmp_path: Path) -> None:
    (tmp_path / "ingestd.toml").write_text('[store]\nurl = "sqlite:ingestd.db"\n')
    done = run_ingestd("reload", folder=tmp_path)
    assert done.returncode == 75
    assert f"no daemon with the configuration {tmp_path}/ingestd.toml runs on this machine" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["ingestd.toml"]
    done = run_ingestd("reload", "--config", "missing.toml", folder=tmp_path)
    assert done.returncode == 78
    assert "missing.toml: cannot be read" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can hide a run directory from the command")
def test_a_daemon_without_a_run_directory_is_named_with_the_command_that_reloads_it(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    with Daemon(shop.config, environment={"RUNTIME_DIRECTORY": str(tmp_path / "missing")}) as daemon:
        assert any("ingestd reload cannot find this daemon" in line for line in daemon.log)
        done = run_ingestd("reload", config=shop.config)
        assert done.returncode == 1
        assert f"process {daemon.pid} has the store" in done.stderr
        assert f"run kill -HUP {daemon.pid} and see its log" in done.stderr
        assert daemon.terminate() == 0


def test_all_daemons_of_a_redis_on_this_machine_are_reloaded_and_others_are_named(tmp_path: Path) -> None:
    with redis_shop(tmp_path) as shop:
        other = tmp_path / "other.toml"
        other.write_text(shop.config.read_text())
        with Daemon(shop.config) as first, Daemon(other) as second, shop.redis.client() as client:
            until = 4_000_000_000_000
            client.zadd("ingestd:daemons", {"0123abcd 77 shop-2.example": until})
            other.write_text(f"{other.read_text()}[logs.of]\n")
            done = run_ingestd("reload", config=shop.config)
            assert done.returncode == 78
            assert IN_FORCE.format(2, first.pid) in done.stdout
            assert "on other machines" in done.stdout
            assert "shop-2.example (process 77, 0123abcd)" in done.stdout
            assert "refused, generation 1 stays in force" in done.stderr
            assert second.metric("ingestd_config_generation") == 1
            assert first.terminate() == second.terminate() == 0
            done = run_ingestd("reload", config=shop.config)
            assert done.returncode == 75
            assert (
                "daemons run on other machines, shop-2.example (process 77, 0123abcd): run this command there"
                in done.stderr
            )


def test_a_daemon_that_still_starts_is_reloaded_when_it_is_ready(tmp_path: Path) -> None:
    """The daemon waits for another holder of the store's lock while the reload arrives."""
    shop = Shop(tmp_path)
    lock = "import fcntl,sys,time; f=open(sys.argv[1],'a'); fcntl.flock(f,2); print(1,flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", lock, f"{shop.database}.lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with Command([INGESTD, "serve", "--config", str(shop.config)], stderr=subprocess.DEVNULL) as starting:
            wait_until(lambda: bool(run_directories(starting.pid)))
            with Command(
                [INGESTD, "reload", "--config", str(shop.config)], stdout=subprocess.PIPE, text=True
            ) as reloading:
                holder.communicate("\n")
                assert reloading.communicate(timeout=20)[0] == IN_FORCE.format(2, starting.pid)
            starting.terminate()
            assert starting.wait(20) == 0


def test_a_run_directory_is_made_in_a_folder_of_this_user_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ingestd.daemon.run_file._RUN", tmp_path / "run")
    monkeypatch.setattr("ingestd.daemon.run_file._TMP", tmp_path)
    parent = tmp_path / f"ingestd-{os.geteuid()}"
    state = RunState(pid=os.getpid(), config="/shop.toml")
    file = hold_run_file(state)
    assert file.held
    assert file.directory.parent == parent
    assert parent.stat().st_mode & 0o777 == file.directory.stat().st_mode & 0o777 == 0o755
    file.release()
    assert not file.directory.exists()

    left = parent / "left"
    left.mkdir()
    (left / "ingestd.lock").touch()
    (left / "ingestd.json").touch()
    os.utime(left, (0, 0))
    hold_run_file(state).release()
    assert [*parent.iterdir()] == []

    parent.chmod(0o777)
    with caplog.at_level("INFO", "ingestd.reload"):
        assert not hold_run_file(state).held
    assert f"{parent} is not a directory of this user alone" in caplog.text


def test_run_files_of_another_user_are_not_read(tmp_path: Path) -> None:
    lock, text = tmp_path / "ingestd.lock", tmp_path / "ingestd.json"
    lock.touch()
    hold = "import fcntl,sys; f=open(*sys.argv[1:3]); fcntl.lockf(f,int(sys.argv[3])); print(1,flush=True); input()"

    @contextmanager
    def locked(mode: str, kind: int) -> Iterator[int]:
        with subprocess.Popen(
            [sys.executable, "-c", hold, str(lock), mode, str(kind)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as holder:  # fmt: skip
            assert holder.stdout is not None
            holder.stdout.readline()
            yield holder.pid
            holder.communicate("\n")

    with locked("r", fcntl.LOCK_SH):  # every user who can read the file can have such a lock
        assert RunFile(tmp_path).holder() is None
    with locked("a", fcntl.LOCK_EX) as pid:
        assert RunFile(tmp_path).holder() == pid
        assert RunFile(tmp_path).read() is None
        text.write_text("{")
        assert RunFile(tmp_path).read() is None
        text.unlink()
        os.mkfifo(text)  # opening it must not block
        assert RunFile(tmp_path).read() is None
        text.unlink()
        text.symlink_to(lock)
        with pytest.raises(OSError, match="symbolic links"):
            RunFile(tmp_path).read()
