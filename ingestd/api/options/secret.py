"""Types of secret options: where a secret may be stored, and the text that is shown instead of it.

Plugins import these types from `ingestd.api.options`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit

__all__ = ["Secret", "Url"]


class Secret(str):
    """A password, token or key. It is a text whose `repr` is `***`.

    The configuration gives it as text, `{ file = "path" }`, `{ env = "NAME" }` or `{ credential = "name" }` (a
    credential of systemd). The last line end of a file is removed. The daemon reads a secret once, together with
    the configuration.
    """

    expected: ClassVar[str] = 'text, { file = "…" }, { env = "…" } or { credential = "…" }'

    reference: Mapping[str, str] | None = None
    """The table in the configuration, with an absolute path, or None if the secret was given as text."""

    @classmethod
    def read(cls: type[_S], given: Any, base: Path) -> _S:
        """Read a secret from the value in the configuration.

        Raises `ValueError`. Its message never contains a part of the secret.
        """
        reference = None
        if isinstance(given, str):
            text = given
        elif isinstance(given, dict) and len(given) == 1 and all(isinstance(name, str) for name in given.values()):
            ((kind, name),) = given.items()
            if kind == "file":
                name = str(base / name)
                text = _read_file(Path(name), "the file")
            elif kind == "env":
                text = _read_environment(name)
            elif kind == "credential":
                text = _read_credential(name)
            else:
                raise ValueError(f"expected {cls.expected}")
            reference = {kind: name}
        else:
            raise ValueError(f"expected {cls.expected}")
        cls.check(text)
        secret = cls(text)
        secret.reference = reference
        return secret

    @classmethod
    def check(cls, text: str) -> None:
        """Raises `ValueError` if the text cannot be such a secret."""
        if not text:
            raise ValueError("is empty")
        try:
            text.encode()
        except UnicodeEncodeError:  # the environment and arguments may contain any bytes
            raise ValueError("is not UTF-8") from None

    @property
    def masked(self) -> str:
        """The text with its secret parts hidden."""
        return "***"

    @property
    def shown(self) -> str | Mapping[str, str] | None:
        """The value for `ingestd config show`: the reference, which is not secret, or else the masked text.

        None for an empty default, because a file cannot give an empty secret.
        """
        return self.reference or (self.masked if self else None)

    def __repr__(self) -> str:
        return repr(self.masked)


_S = TypeVar("_S", bound=Secret)


class Url(Secret):
    """A URL that may contain a password, which its `repr` hides. The configuration gives it like a `Secret`."""

    example: ClassVar[str] = "https://host.example/path"
    expected = f"a URL, as {Secret.expected}"

    @classmethod
    def check(cls, text: str) -> None:
        super().check(text)
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*:[^\s]+", text):
            raise ValueError(f'expected a URL with its scheme, such as "{cls.example}"')
        try:
            urlsplit(text)
        except ValueError:  # its message shows the user and password
            raise ValueError(
                "has no valid host; a password must contain / ? # @ : % and non-ASCII letters as %2F …"
            ) from None

    @property
    def masked(self) -> str:
        # Everything up to the last @ is hidden, because a password may contain an unescaped / or @.
        text = re.sub(r"(?<=://)([^:/@]*):.*@", r"\1:***@", self)
        return re.sub(r"(?i)([?&][^=&#]*(?:password|secret|token)[^=&#]*=)[^&#]*", r"\1***", text)


def _read_environment(name: str) -> str:
    value = os.environ.get(name)
    if value is None:
        raise ValueError(f"the environment variable {name} is not set")
    return value


def _read_credential(name: str) -> str:
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    if folder is None:
        raise ValueError(
            f"there is no credential {name}: systemd has passed none; add LoadCredential={name}:PATH to the unit"
        )
    if Path(name).name != name:
        raise ValueError(f"the name of a credential must not contain /, got {name!r}")
    # ingestd.service loads a whole folder as `ingestd`. systemd then puts `ingestd_` before the name of each file.
    alone, of_folder = Path(folder, name), Path(folder, f"ingestd_{name}")
    path = of_folder if os.access(of_folder, os.F_OK) and not os.access(alone, os.F_OK) else alone
    return _read_file(path, f"the credential {name}, from LoadCredential= in the unit:")


def _read_file(path: Path, what: str) -> str:
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError:
        raise ValueError(f"{what} {path} is not UTF-8") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ValueError(f"{what} {path} cannot be read: {reason}") from None
    return re.sub(r"\r?\n\Z", "", text)
