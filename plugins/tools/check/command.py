"""`ingestd check`: checks everything that a start needs, and prints one page of results.

It runs with or without a running daemon. After a fault it continues with the other checks. The exit code is 78 if an
operator must correct a fault, 75 if all faults may pass, 0 without faults.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import importlib.metadata
import platform
import re
import resource
from collections.abc import Collection, Iterator, Sequence
from typing import NoReturn

from ingestd import __version__
from ingestd.api.check_result import CheckResult, fault
from ingestd.api.errors import ConfigError
from ingestd.api.options import Address
from ingestd.api.output import write_result
from ingestd.cli.command_line import DEFAULTS
from ingestd.config import Config, find_config
from ingestd.daemon.generation import check_intakes
from ingestd.daemon.listening import answers_events, bind, readiness
from ingestd.daemon.process import files_needed
from ingestd.delivery import SinkConsumer, make_sink_consumer
from ingestd.delivery.sink_consumer import PREFIX
from ingestd.hooks.loader import Plugins
from ingestd.http.routes import BASE_PATH
from ingestd.validation.validator import Validator

from .config_faults import every_fault, filter_risks, show_risks, sink_risks, url_risks
from .report import Report
from .store import look_at_store

__all__ = ["check"]


async def check(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    """Print the results. Raises `ConfigError` or `Unavailable` with all faults, if there are any."""
    if config.source == DEFAULTS:
        _refuse(arguments.config, arguments.set, as_json=arguments.json)
    report = Report(config.source)
    report.hide([config, *(plugin.options for plugin in plugins.loaded)])
    report.add("versions", _versions())
    validator, found = _schemas(config)
    keys = None if validator is None else validator.keys
    report.add("plugins", [*_plugins(plugins), *_intake_faults(config, plugins, keys)])
    report.add("schemas", [found])
    sinks, faults = _make_sinks(config, plugins, keys)
    report.hide([consumer.sink.options for consumer in sinks])
    faulty = {PREFIX + finding.name for finding in faults}
    report.add("store", show_risks(url_risks(config)))
    pid = await look_at_store(report, config, plugins, [*plugins.consumers, *sinks], faulty, validator=validator)
    checked = await asyncio.gather(*map(_sink, sinks))
    risks = [risk for consumer in sinks for risk in sink_risks(consumer.sink)]
    risks += [risk for each in sinks for risk in show_risks(filter_risks(each.sink.name, each.options.filter))]
    report.add("sinks", [*faults, *checked, *risks])
    if validator is not None:
        well = [consumer.sink for consumer, result in zip(sinks, checked, strict=True) if result.status == "ok"]
        for results in plugins.manager.hook.check_sinks(sinks=well, files=validator.sources):
            report.add("sinks", await results)
    report.add("listeners", await asyncio.to_thread(_listeners, config, daemon=pid is not None))
    report.add("limits", [_open_files(config.http.max_connections, pid)])
    _print(report, as_json=arguments.json)


def _refuse(path: str | None, overrides: Sequence[str], *, as_json: bool) -> NoReturn:
    """`check` of an invalid configuration: print and raise all of its faults."""
    try:
        file = find_config(path)
        faults = every_fault(file, overrides)
        report = Report(str(file))
    except ConfigError as error:
        faults = [str(error)]
        report = Report("nothing")
    report.add("configuration", [CheckResult("configuration", each, "broken") for each in faults])
    _print(report, as_json=as_json)
    raise AssertionError("a configuration that cannot be read has a fault")


def _print(report: Report, *, as_json: bool) -> None:
    try:
        write_result(report.facts(), lines=report.lines(), as_json=as_json)
    finally:  # faults decide the exit code even if nobody reads the output
        error = report.error
        if error is not None:
            raise error


def _versions() -> Iterator[CheckResult]:
    yield CheckResult("ingestd", __version__)
    yield CheckResult("Python", f"{platform.python_version()} on {platform.system()} {platform.release()}")
    required = [
        re.split(r"[^A-Za-z0-9._-]", each)[0]
        for each in importlib.metadata.requires("ingestd") or []
        if "extra ==" not in each
    ]
    libraries = {name: importlib.metadata.version(name) for name in sorted(required)}
    yield CheckResult(
        "libraries", ", ".join(f"{name} {version}" for name, version in libraries.items()), facts=libraries
    )


def _plugins(plugins: Plugins) -> Iterator[CheckResult]:
    for plugin in plugins.loaded:
        facts = {"distribution": plugin.distribution, "version": plugin.version, "source": plugin.source}
        yield CheckResult(plugin.name, f"{plugin.distribution} {plugin.version}, {plugin.source}", facts=facts)


def _intake_faults(config: Config, plugins: Plugins, keys: frozenset[str] | None) -> Iterator[CheckResult]:
    try:
        if keys is not None:
            check_intakes(config, plugins, keys)
    except ConfigError as error:
        yield fault("intakes", error)


def _schemas(config: Config) -> tuple[Validator | None, CheckResult]:
    """The schemas, or None after a fault."""
    try:
        validator = Validator.load(config.schemas.directory)
    except ConfigError as error:
        return None, fault("event keys", error)
    directory = config.schemas.directory
    own = f", including those in {directory}" if directory is not None else ""
    count = len(validator.keys)
    return validator, CheckResult("event keys", f"{count} event keys{own}", facts={"count": count})


def _make_sinks(
    config: Config, plugins: Plugins, keys: Collection[str] | None
) -> tuple[list[SinkConsumer], list[CheckResult]]:
    made, faults = [], []
    for name, table in config.sink_tables.items():
        try:
            sink_class = plugins.sinks[table["type"]]
            transforms, channels = plugins.transforms, plugins.channels
            made.append(
                make_sink_consumer(name, table, sink_class, config, keys, transforms=transforms, channels=channels)
            )
        except ConfigError as error:
            faults.append(fault(name, error))
    return made, faults


async def _sink(consumer: SinkConsumer) -> CheckResult:
    name = consumer.sink.name
    try:
        try:
            await consumer.check()
        finally:
            await consumer.close()
    except Exception as error:  # noqa: BLE001 - any error of a sink is a result
        return fault(name, error)
    return CheckResult(name, "ok, checked without writing")


def _listeners(config: Config, *, daemon: bool) -> Iterator[CheckResult]:
    yield _listener("events", config.http.listen, daemon)
    yield _listener("operators", config.ops.listen, daemon)


def _listener(name: str, address: Address, daemon: bool) -> CheckResult:
    facts = {"address": str(address)}
    try:
        for sock in bind(address):
            sock.close()
    except (ConfigError, OSError) as error:
        ours = _running(name, address, facts) if daemon else None
        if ours is not None:
            return ours
        taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        found = fault(name, error)
        text = f"{address} is in use by a program that is not a daemon of this store" if taken else found.text
        return found._replace(text=text, facts=facts)
    return CheckResult(name, f"{address} can be bound" if address.port else f"{address}: any free port", facts=facts)


def _running(name: str, address: Address, facts: dict[str, str]) -> CheckResult | None:
    """The state of the running daemon's listener, None if another program listens there."""
    if name == "events":
        if not answers_events(address, f"{BASE_PATH}/track"):
            return None
        return CheckResult(name, f"{address}: the running daemon answers", facts=facts)
    ready = readiness(address)
    if ready is None:
        return None
    facts = {**facts, "readyz": ready}
    if ready.startswith("ok, "):
        return CheckResult(name, f"{address}: the running daemon is ready{ready[2:]}", "warning", facts)
    if ready != "ok":
        return CheckResult(name, f"{address}: the running daemon is not ready: {ready}", "unavailable", facts)
    return CheckResult(name, f"{address}: the running daemon is ready", facts=facts)


def _open_files(max_connections: int, pid: int | None) -> CheckResult:
    whose, limits = "this process", resource.getrlimit(resource.RLIMIT_NOFILE)
    if pid is not None:
        try:
            whose, limits = "the running daemon", resource.prlimit(pid, resource.RLIMIT_NOFILE)
        except OSError:  # another user's process, or it has ended; the limits of this process are the best guess
            pid = None
    soft, hard = (None if limit == resource.RLIM_INFINITY else limit for limit in limits)
    wanted = files_needed(max_connections)
    facts = {"soft": soft, "hard": hard, "needed": wanted}
    text = f"{_limit(soft)} soft and {_limit(hard)} hard for {whose}; {wanted} needed for {max_connections} connections"
    # The daemon raises the soft limit when it starts.
    counts = hard if pid is None else soft
    if counts is not None and counts < wanted:
        text += ": raise LimitNOFILE= in the unit (ulimit -Hn), or lower http.max_connections"
        return CheckResult("open files", text, "warning", facts)
    return CheckResult("open files", text, facts=facts)


def _limit(limit: int | None) -> str:
    return "no limit" if limit is None else str(limit)
