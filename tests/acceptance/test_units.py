"""The systemd units: systemd-analyze accepts them, and `ingestd install-units` installs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from ingestd.daemon.listening import EVENTS, OPERATORS
from tests.support.forked import INGESTD, run

UNITS = Path(__file__).parents[2] / "systemd"
NAMES = ["ingestd-ops.socket", "ingestd.service", "ingestd.socket", "ingestd@.service", "ingestd@.socket"]
SERVICES = ["ingestd.service", "ingestd@.service"]

Install = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    return environment(tmp_path / "prefix")


def environment(folder: Path) -> Path:
    """Makes a folder that units take for a virtual environment."""
    commands = folder / "bin"
    commands.mkdir(parents=True)
    (commands / "ingestd").symlink_to(INGESTD)
    (commands / "python").symlink_to(sys.executable)
    return folder


@pytest.fixture
def units(tmp_path: Path) -> Path:
    return tmp_path / "units"


@pytest.fixture
def install(prefix: Path, units: Path, tmp_path: Path) -> Install:
    """Runs `ingestd install-units` without a configuration, as on a new machine."""

    def installed(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run(
            [INGESTD, "install-units", "--directory", str(units), "--prefix", str(prefix), *arguments],
            cwd=tmp_path,
            env={name: value for name, value in os.environ.items() if name != "INGESTD_CONFIG"},
            text=True,
        )

    return installed


def settings(name: str) -> dict[str, list[str]]:
    """The values of each setting of a unit of this tree, in order."""
    found: dict[str, list[str]] = {}
    for line in (UNITS / name).read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            setting, _, value = line.partition("=")
            found.setdefault(setting, []).append(value)
    return found


def printed_by_verify(units: Path) -> str:
    files = [str(path) for path in units.iterdir() if path.is_file()]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *files], capture_output=True, text=True, check=False
    )  # fmt: skip
    return done.stdout + done.stderr


def exposure(unit: Path) -> float:
    done = subprocess.run(
        ["systemd-analyze", "security", "--no-pager", "--offline=true", str(unit)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    match = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert match is not None, done.stdout
    return float(match[1])


# Checks by systemd


@pytest.mark.parametrize("outgoing", [(), ("--outgoing",)], ids=["closed", "outgoing"])
def test_systemd_finds_no_fault_in_the_units(outgoing: tuple[str, ...], install: Install, units: Path) -> None:
    assert install(*outgoing).returncode == 0
    assert printed_by_verify(units) == ""


def test_systemd_would_report_an_unknown_setting(install: Install, units: Path) -> None:
    assert install().returncode == 0
    with (units / "ingestd.service").open("a") as file:
        file.write("[Service]\nProtectEverything=yes\n")
    assert "ProtectEverything" in printed_by_verify(units)


def test_the_sandbox_is_as_tight_as_promised(install: Install, units: Path) -> None:
    assert install().returncode == 0
    assert exposure(units / "ingestd.service") <= 0.5
    assert install("--outgoing").returncode == 0
    assert 0.5 < exposure(units / "ingestd.service") <= 1.5
    assert exposure(units / "ingestd@.service") <= 1.5


# Settings of the units


@pytest.mark.parametrize("name", SERVICES)
def test_services_define_start_watchdog_and_restart(name: str) -> None:
    said = settings(name)
    assert said["Type"] == ["notify"]
    assert said["NotifyAccess"] == ["main"]
    assert said["WatchdogSec"] == ["30s"]
    assert said["Restart"] == ["on-failure"]
    assert said["RestartPreventExitStatus"] == ["78"]
    assert said["StartLimitIntervalSec"] == ["0"]
    assert said["LoadCredential"] == ["ingestd:/etc/ingestd/credentials"]
    assert "ExecStartPre" not in said  # a failing one is retried for ever, unlike `serve`
    assert "ProcSubset" not in said  # it would hide the process_ metrics
    assert said["NoExecPaths"] == [f"/ /var/lib/private/{said['StateDirectory'][0]}"]


def test_no_state_directory_is_inside_another() -> None:
    assert [settings(name)["StateDirectory"] for name in SERVICES] == [["ingestd/main"], ["ingestd/%i"]]
    assert [settings(name)["RuntimeDirectory"] for name in SERVICES] == [["ingestd/main"], ["ingestd/%i"]]


def test_several_daemons_share_one_store_and_one_port() -> None:
    assert " serve --shared " in settings("ingestd@.service")["ExecStart"][0]
    assert " --shared" not in settings("ingestd.service")["ExecStart"][0]
    assert settings("ingestd@.socket")["ReusePort"] == ["yes"]
    assert settings("ingestd@.socket")["ListenStream"] == settings("ingestd.socket")["ListenStream"]


def test_sockets_have_the_names_that_the_daemon_expects() -> None:
    names = {name: settings(name)["FileDescriptorName"] for name in NAMES if name.endswith(".socket")}
    assert names == {"ingestd.socket": [EVENTS], "ingestd@.socket": [EVENTS], "ingestd-ops.socket": [OPERATORS]}
    # A daemon without network access must receive both sockets.
    assert settings("ingestd.service")["Requires"] == ["ingestd.socket ingestd-ops.socket"]
    assert settings("ingestd.service")["PrivateNetwork"] == ["yes"]


def test_the_template_differs_from_the_service_only_where_several_daemons_need_it() -> None:
    alone, several = settings("ingestd.service"), settings("ingestd@.service")
    differing = {name for name in alone | several if alone.get(name) != several.get(name)}
    assert differing == {
        "Description", "Wants", "After", "Requires", "Sockets", "ExecStart", "StateDirectory", "RuntimeDirectory",
        "NoExecPaths", "PrivateNetwork", "IPAddressDeny", "RestrictAddressFamilies", "DefaultInstance", "Also",
    }  # fmt: skip


def test_every_unit_and_no_option_that_install_units_lacks_is_documented() -> None:
    page = (UNITS.parent / "docs" / "systemd.md").read_text()
    printed = subprocess.run([INGESTD, "install-units", "--help"], capture_output=True, text=True, check=True).stdout
    own = set(re.findall(r"--[a-z-]+", printed)) - {"--help", "--config", "--set"}
    assert {"--outgoing"} <= set(re.findall(r"install-units (--[a-z-]+)", page)) - {"--help"} <= own
    assert {*NAMES} <= set(re.findall(r"`(ingestd[\w@-]*\.\w+)`", page))


# Installation


def test_units_are_installed_for_the_environment_once(install: Install, units: Path, prefix: Path) -> None:
    done = install()
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in units.iterdir()) == NAMES
    assert done.stdout.splitlines()[: len(NAMES)] == [f"installed: {units / name}" for name in NAMES]
    assert "systemctl enable --now ingestd.service" in done.stdout
    service = (units / "ingestd.service").read_text()
    assert f"\nExecStart={prefix}/bin/ingestd serve --config /etc/ingestd/ingestd.toml\n" in service
    assert re.search(rf"^ExecPaths=/usr {re.escape(str(prefix))}( |$)", service, re.MULTILINE)
    assert "=/opt/ingestd" not in service
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in units.iterdir()}
    again = install()
    assert again.returncode == 0
    assert again.stdout.splitlines()[: len(NAMES)] == [f"unchanged: {units / name}" for name in NAMES]
    assert again.stdout.endswith("Nothing has changed.\n")
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in units.iterdir()} == before


def test_outgoing_connections_are_a_drop_in_that_stays_until_it_is_removed(install: Install, units: Path) -> None:
    drop_in = units / "ingestd.service.d" / "outgoing.conf"
    assert install().returncode == 0
    assert not drop_in.exists()
    assert f"installed: {drop_in}" in install("--outgoing").stdout
    assert install().returncode == 0
    assert drop_in.exists()


def test_a_dry_run_prints_the_same_and_changes_nothing(install: Install, units: Path) -> None:
    done = install("--dry-run")
    assert done.returncode == 0
    assert done.stdout.splitlines()[0] == f"would be installed: {units / NAMES[0]}"
    assert not units.exists()


def test_a_unit_of_an_older_ingestd_is_updated(install: Install, units: Path, prefix: Path, tmp_path: Path) -> None:
    assert install().returncode == 0
    other = prefix.rename(tmp_path / "other")
    done = install("--prefix", str(other))
    assert f"renewed: {units / 'ingestd.service'}" in done.stdout
    assert f"unchanged: {units / 'ingestd.socket'}" in done.stdout
    assert f"ExecStart={other}/bin/ingestd" in (units / "ingestd.service").read_text()


def test_an_edited_unit_is_only_overwritten_with_the_option_for_it(install: Install, units: Path, prefix: Path) -> None:
    assert install().returncode == 0
    socket, service = units / "ingestd.socket", units / "ingestd.service"
    edited = socket.read_text().replace("127.0.0.1:8080", "0.0.0.0:80")
    socket.write_text(edited)
    service.unlink()
    for arguments in ((), ("--dry-run",)):
        done = install(*arguments)
        assert done.returncode == 1
        assert f"{socket}: edited after its installation, so no unit is changed" in done.stderr
        assert "systemctl edit" in done.stderr
        assert socket.read_text() == edited
        assert not service.exists()  # either all units are changed or none
    done = install("--force")
    assert f"overwritten: {socket}" in done.stdout
    assert f"installed: {service}" in done.stdout
    assert socket.with_name("ingestd.socket.edited").read_text() == edited
    assert "0.0.0.0" not in socket.read_text()


def test_without_the_executable_nothing_is_installed_and_the_remedy_is_named(install: Install, units: Path) -> None:
    done = install("--prefix", "/nowhere/ingestd")
    assert done.returncode == 1
    assert "/nowhere/ingestd/bin/ingestd does not exist or cannot be run" in done.stderr
    assert "python3 -m venv /nowhere/ingestd" in done.stderr
    assert not units.exists()


@pytest.mark.parametrize("prefix_given", ["relative/path", "/with a space", "/with%specifier"])
def test_a_path_that_units_cannot_contain_is_refused(prefix_given: str, install: Install) -> None:
    done = install("--prefix", prefix_given)
    assert done.returncode == 1
    assert "expected an absolute path" in done.stderr


def test_an_environment_that_units_cannot_see_is_reported(install: Install, prefix: Path) -> None:
    unseen = ("/tmp/", "/root/", "/home/", "/var/tmp/")
    hidden = any(str(path).startswith(unseen) for path in (prefix, Path(sys.executable).resolve()))
    assert ("WARNING: " in install().stdout) == hidden
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        there = environment(Path(folder) / "shop")
        assert f"WARNING: {there} is hidden from the units" in install("--prefix", str(there)).stdout


def test_a_folder_that_cannot_be_written_is_reported_without_a_traceback(install: Install, units: Path) -> None:
    units.write_text("a file")
    done = install()
    assert done.returncode == 1
    assert "run this command as root" in done.stderr
    assert "Traceback" not in done.stderr
