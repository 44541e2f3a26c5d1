"""`ingestd reload`: makes running daemons read their configuration again, and prints the outcome.

A systemd unit can use it in `ExecReload=`.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import shlex
import signal
import sys
from pathlib import Path

from ingestd.api.errors import CommandError, ConfigError, IngestdError, Unavailable
from ingestd.api.options import Duration
from ingestd.api.output import write
from ingestd.config import Config, find_config
from ingestd.daemon.run_file import RunFile, RunState, runtime_directory
from ingestd.hooks.loader import Plugins
from ingestd.support.terminal import printable

from .running_daemons import RunningDaemon, RunningDaemons, find_daemons, systemd_unit, user_of

__all__ = ["add_arguments", "reload"]

log = logging.getLogger("ingestd.reload")

_LOOK = 0.05  # seconds between two looks for the outcome


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--directory", metavar="DIR", type=Path,
        help="reload the daemon with this run directory only, instead of all daemons of the configuration",
    )  # fmt: skip
    parser.add_argument(
        "--timeout", metavar="TIME", type=Duration.parse, default=Duration.parse("60s"),
        help="the time limit of each daemon; default: 60s",
    )  # fmt: skip


async def reload(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    """Return once the new configuration is in force in all daemons found.

    `config` is the default configuration: each daemon reads and checks its own file.
    """
    daemon = _named_daemon(arguments)
    if daemon is not None:
        await _reload(daemon, arguments)
        return
    path = find_config(arguments.config)
    found = await find_daemons(path, arguments.set)
    failures: list[IngestdError] = []
    for each in found.here:
        try:
            await _reload(each, arguments)
        except IngestdError as failure:
            failures.append(failure)
    if found.without_file:
        failures.append(CommandError("; ".join(map(_signal_hint, found.without_file))))
    if not found.here and not found.without_file:
        raise _none_found(path, found, arguments)
    if found.elsewhere:
        write([f"daemons on other machines have the same store; run this command there too: {_elsewhere(found)}"])
    if found.store_failure is not None and not failures:
        write([f"other daemons of the store cannot be found: {found.store_failure}"])
    for other in failures[:-1]:
        log.error("%s", other)
    if failures:
        raise failures[-1]


def _named_daemon(arguments: argparse.Namespace) -> RunningDaemon | None:
    """The daemon of `--directory`. Without `--config`, the daemon of `RUNTIME_DIRECTORY`, as for `ExecReload=`."""
    directory = arguments.directory or (None if arguments.config else runtime_directory())
    if directory is None:
        return None
    file = RunFile(directory)
    try:
        state = file.read()
    except PermissionError as error:
        raise CommandError(f"{error}; run {_as_root('--directory', directory)}") from None
    if state is None and arguments.directory is not None:
        raise Unavailable(f"no daemon runs with the run directory {directory}")
    return None if state is None else RunningDaemon(file, state)


async def _reload(daemon: RunningDaemon, arguments: argparse.Namespace) -> None:
    """Reload one daemon. Raises `CommandError`, `ConfigError`, `Unavailable`."""
    file, before = daemon.file, daemon.state
    process = f"process {before.pid}"
    if before.pid == 0:
        raise CommandError(f"the daemon of {file.directory} runs in a container; run ingestd reload in that container")
    user = user_of(before.pid)
    try:
        os.kill(before.pid, signal.SIGHUP)
    except PermissionError:
        raise CommandError(
            f"the daemon belongs to {'another user' if user is None else f'user {user}'} ({process});"
            f" run {_privileged(before)}"
        ) from None
    except ProcessLookupError:
        raise CommandError(f"the daemon has ended ({process}); see its log") from None
    try:
        async with asyncio.timeout(arguments.timeout):
            state = await _outcome(file, before)
    except TimeoutError:
        raise Unavailable(
            f"the reload has not ended within {arguments.timeout} ({process}); see the log of the daemon"
        ) from None
    if state.refused is not None:
        reason = f"refused, generation {state.generation} stays in force: {printable(state.refused)}"
        if state.code == os.EX_CONFIG:
            raise ConfigError(reason)
        raise Unavailable(reason) if state.code == os.EX_TEMPFAIL else CommandError(reason)
    owner = "" if user is None else f" of user {user}"
    remarks = [f"WARNING: {printable(each)}" for each in state.remarks]
    write([f"generation {state.generation} of the configuration is in force ({process}{owner})", *remarks])


async def _outcome(file: RunFile, before: RunState) -> RunState:
    """The state after the first reload that began after `before`, and so read the present files."""
    while (state := file.read()) is not None and state.pid == before.pid:
        if state.ended > before.begun:
            return state
        await asyncio.sleep(_LOOK)
    raise CommandError(f"the daemon has ended (process {before.pid}); see its log")


def _none_found(config: Path, found: RunningDaemons, arguments: argparse.Namespace) -> IngestdError:
    reasons = [f"no daemon with the configuration {os.path.abspath(config)} runs on this machine"]
    if found.elsewhere:
        reasons.append(f"daemons run on other machines, {_elsewhere(found)}: run this command there")
    is_hidden = os.geteuid() != 0 and found.is_partial
    if is_hidden:
        named = ["--config", os.path.abspath(config)]
        command = _as_root(*named)
        reasons.append(f"another user's daemon may be hidden: run {command}, or systemctl reload ingestd for a service")
    if found.store_failure is not None and not is_hidden:
        text = "; ".join([str(found.store_failure), *reasons])
        return ConfigError(text) if isinstance(found.store_failure, ConfigError) else Unavailable(text)
    return Unavailable("; ".join(reasons))


def _elsewhere(found: RunningDaemons) -> str:
    return ", ".join(f"{printable(each.host)} (process {each.pid}, {each.id})" for each in found.elsewhere)


def _privileged(state: RunState) -> str:
    """The commands that may reload the daemon."""
    unit = systemd_unit(state.pid)
    commands = [f"systemctl reload {unit}"] if unit else []
    return " or ".join([_as_root("--config", state.config), *commands])


def _signal_hint(pid: int) -> str:
    unit = systemd_unit(pid)
    signal_command = f"{'' if user_of(pid) is None else 'sudo '}kill -HUP {pid}"
    return (
        f"process {pid} has the store, but no run directory that this command can read;"
        f" run {f'systemctl reload {unit}' if unit else signal_command} and see its log"
    )


def _as_root(*arguments: object) -> str:
    """The command with `sudo`, and the program's absolute path, since sudo often has another PATH."""
    program = Path(sys.argv[0])
    name = os.path.abspath(program) if program.name == "ingestd" else "ingestd"
    return shlex.join(["sudo", name, "reload", *map(str, arguments)])
