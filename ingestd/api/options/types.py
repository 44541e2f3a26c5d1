"""Types of options that TOML does not have: numbers with units, addresses, networks.

`parse` reads a value from the file, and `str` writes it in the same form. Plugins import these types from
`ingestd.api.options`.
"""

from __future__ import annotations

import argparse
import ipaddress
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar

from ingestd.api import times

__all__ = ["POSITIVE", "Address", "Duration", "Network", "PositiveDuration", "PositiveSize", "Size", "since"]


class _Unit(float):
    """A number with a unit, written as text such as `30m`."""

    units: ClassVar[Mapping[str, float]]
    """The factor of each unit by its name, smallest unit first."""
    example: ClassVar[str]
    most: ClassVar[float]
    """The largest number. A larger one could overflow sums of times and sizes."""
    digits: ClassVar[int] = 0
    """The number of decimal places; further digits are rounded off."""

    @classmethod
    def parse(cls: type[_U], text: Any) -> _U:
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]+)", text) if isinstance(text, str) else None
        if match is None or match[2] not in cls.units:
            raise ValueError(f'expected a number with a unit ({", ".join(cls.units)}), such as "{cls.example}"')
        number = float(match[1]) * cls.units[match[2]]
        if number > cls.most:
            raise ValueError(f"expected at most {cls(cls.most)}")
        return cls(round(number, cls.digits))

    def __str__(self) -> str:
        """The number in the largest unit that gives a whole number."""
        (smallest, least), *_ = self.units.items()
        number = round(self / least)
        for unit, factor in reversed([*self.units.items()]):
            size = round(factor / least)
            if number >= size and number % size == 0:
                return f"{number // size}{unit}"
        return f"0{smallest}"


_U = TypeVar("_U", bound=_Unit)


class Duration(_Unit):
    """A float of seconds, written as `500ms`, `5s`, `30m`, `24h` or `7d`, in whole milliseconds."""

    units: ClassVar[Mapping[str, float]] = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
    example = "30m"
    most = 36500 * 86400
    digits = 3

    @property
    def milliseconds(self) -> int:
        return round(self * 1000)


class Size(_Unit):
    """A float of whole bytes, written as `256kB` or `1MiB`."""

    units: ClassVar[Mapping[str, float]] = {
        "B": 1,
        "kB": 10**3,
        "KiB": 2**10,
        "MB": 10**6,
        "MiB": 2**20,
        "GB": 10**9,
        "GiB": 2**30,
    }
    example = "1MiB"
    most = 2**50


def since(text: str) -> int:
    """The argument type of commands: an RFC 3339 time, or an age before the present. Returns milliseconds."""
    at = times.parse_time(text)
    if at is not None:
        return at
    try:
        return times.now() - Duration.parse(text).milliseconds
    except ValueError as error:
        raise argparse.ArgumentTypeError("expected an RFC 3339 time or an age such as 2h") from error


# `read_options` refuses zero, because msgspec has bounds for plain numbers only.
POSITIVE = "more than 0"
PositiveDuration = Annotated[Duration, POSITIVE]
PositiveSize = Annotated[Size, POSITIVE]


class Address(NamedTuple):
    """The address of a listener, written as `127.0.0.1:8080` or `[::1]:8080`. Port 0 means any free port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: Any) -> Address:
        match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]]+):([0-9]{1,5})", text) if isinstance(text, str) else None
        if match is None or int(match[2]) > 65535:
            raise ValueError('expected an address and a port, such as "127.0.0.1:8080" or "[::1]:8080"')
        return cls(match[1].strip("[]"), int(match[2]))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Network(str):
    """One IP address (`10.0.0.1`), or a network (`10.0.0.0/8`, `fd00::/8`)."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: Any) -> Network:
        try:
            if isinstance(text, str):
                ipaddress.ip_network(text)
                return cls(text)
        except ValueError:
            pass  # the error below names the expected form
        raise ValueError('expected an IP address or a network without host bits, such as "10.0.0.0/8"')
