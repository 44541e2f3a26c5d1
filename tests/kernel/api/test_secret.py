"""Secrets: where they can be stored, the errors of missing ones, and that nothing shows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.api.errors import ConfigError
from ingestd.api.options import Options, Secret, Url, read_options, shown


class Careful(Options):
    token: Secret | None = None
    url: Url | None = None


def read(base: Path, **table: Any) -> Careful:
    return read_options(Careful, table, path="sinks.a", source="x.toml", base=base)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with secrets, one of which systemd has passed as a credential, and one in the environment."""
    (tmp_path / "token").write_bytes(b"from a file\n")
    (tmp_path / "credentials").mkdir()
    (tmp_path / "credentials" / "token").write_bytes(b"from systemd")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path / "credentials"))
    monkeypatch.setenv("TOKEN", "from the environment")
    return tmp_path


def test_a_secret_is_a_text_or_a_reference(folder: Path) -> None:
    assert read(folder, token="plain").token == "plain"
    assert read(folder, token={"file": "token"}).token == "from a file"
    assert read(folder, token={"file": str(folder / "token")}).token == "from a file"
    assert read(folder, token={"env": "TOKEN"}).token == "from the environment"
    assert read(folder, token={"credential": "token"}).token == "from systemd"


def test_a_url_is_a_text_or_a_reference(folder: Path) -> None:
    (folder / "token").write_text("redis://:pw@h:6379/0\n")
    assert read(folder, url={"file": "token"}).url == "redis://:pw@h:6379/0"
    assert read(folder, url="sqlite:x.db").url == "sqlite:x.db"


@pytest.mark.parametrize(
    ("content", "secret"),
    [
        (b"s\n", "s"),
        (b"s\r\n", "s"),
        (b"s", "s"),
        (b"s\n\n", "s\n"),
        (b" s \n", " s "),
        (b"s\r", "s\r"),
        (b"a\nb\n", "a\nb"),
    ],
)
def test_one_line_end_of_a_file_is_removed_and_no_more(folder: Path, content: bytes, secret: str) -> None:
    (folder / "token").write_bytes(content)
    assert read(folder, token={"file": "token"}).token == secret


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("", "is empty"),
        ({"file": "empty"}, "is empty"),
        ({"file": "missing"}, r"the file \S+/missing cannot be read: No such file or directory"),
        ({"file": "credentials"}, r"the file \S+ cannot be read: Is a directory"),
        ({"file": "latin"}, r"the file \S+/latin is not UTF-8"),
        ({"file": "a\0b"}, "the file .* cannot be read: embedded null"),
        ({"env": "NO_SUCH_TOKEN"}, "the environment variable NO_SUCH_TOKEN is not set"),
        ({"env": "EMPTY"}, "is empty"),
        ({"env": "LATIN"}, "is not UTF-8"),
        ({"credential": "missing"}, r"the credential missing, from LoadCredential= .*/missing cannot be read"),
        ({"credential": "../token"}, "the name of a credential must not contain /"),
        ({}, r"expected text, \{ file = .* \}, \{ env = .* \} or \{ credential = .* \}$"),
        ({"fiel": "token"}, "expected text, .* file"),
        ({"file": "token", "env": "TOKEN"}, "expected text, .* file"),
        ({"file": 1}, "expected text, .* file"),
        (12345, "expected text, .* file"),
    ],
)
def test_an_invalid_secret_is_refused_with_the_option_and_the_reason(
    folder: Path, monkeypatch: pytest.MonkeyPatch, given: Any, message: str
) -> None:
    (folder / "empty").write_text("\n")
    (folder / "latin").write_bytes(b"caf\xe9")
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.setenv("LATIN", "caf\udce9")
    with pytest.raises(ConfigError, match=rf"^x\.toml: sinks\.a\.token: {message}"):
        read(folder, token=given)


def test_a_single_credential_takes_precedence_over_a_file_of_a_folder(folder: Path) -> None:
    credentials = folder / "credentials"
    (credentials / "ingestd_erp").write_text("from the folder")
    (credentials / "ingestd_token").write_text("from the folder")
    assert read(folder, token={"credential": "erp"}).token == "from the folder"
    assert read(folder, token={"credential": "token"}).token == "from systemd"


def test_without_systemd_a_credential_is_refused_with_the_cure(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CREDENTIALS_DIRECTORY")
    with pytest.raises(
        ConfigError, match=r"sinks\.a\.token: there is no credential token: .*LoadCredential=token:PATH"
    ):
        read(folder, token={"credential": "token"})


def test_an_invalid_url_is_not_shown(folder: Path) -> None:
    for wrong in ("hunter2", "//u:hunter2@h", "sqlite:", "redis://:hunter2 @h", {"env": "TOKEN"}):
        with pytest.raises(ConfigError, match=r"sinks\.a\.url: expected a URL with its scheme, such as") as error:
            read(folder, url=wrong)
        assert "hunter2" not in str(error.value)
        assert "from the environment" not in str(error.value)


@given(st.text(min_size=1))
def test_a_secret_is_a_text_but_its_repr_hides_it(text: str) -> None:
    options = read(Path("/"), token=f"<{text}>")
    assert options.token == f"<{text}>"
    assert repr(options) == "Careful(token='***', url=None)"
    assert repr([options.token]) == "['***']"
    assert shown(options) == {"token": "***", "url": None}


def test_an_empty_default_is_shown_as_no_value() -> None:
    class Lenient(Options):
        token: Secret = Secret()

    assert shown(Lenient()) == {"token": None}


def test_the_reference_of_a_secret_is_shown(folder: Path) -> None:
    options = read(folder, token={"file": "token"}, url="redis://u:pw@h")
    assert shown(options) == {"token": {"file": str(folder / "token")}, "url": "redis://u:***@h"}
    assert read(Path("/elsewhere"), token=shown(options.token)).token == "from a file"


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("sqlite:///a/b.db", None),
        ("sqlite:b.db", None),
        ("redis://host:6379/0", None),
        ("redis://user@host/0?db=1", None),
        ("unix:///run/redis.sock?db=2", None),
        ("redis://:hunter2@host:6379/0", "redis://:***@host:6379/0"),
        ("rediss://user:hunter2@host", "rediss://user:***@host"),
        ("redis://user:hunt/e@r2@host/0", "redis://user:***@host/0"),
        ("redis://user:hunt:er2@[::1]:1/0", "redis://user:***@[::1]:1/0"),
        ("redis://user:hunt?er#2@host", "redis://user:***@host"),
        ("redis://host/0?password=hunter2&db=1", "redis://host/0?password=***&db=1"),
        ("redis://host/0?db=1&sentinel_Password=hunter2", "redis://host/0?db=1&sentinel_Password=***"),
    ],
)
def test_only_the_password_of_a_url_is_hidden(url: str, masked: str | None) -> None:
    read_url = read(Path("/"), url=url).url
    assert read_url is not None
    assert read_url == url
    assert repr(read_url) == repr(masked or url)
    assert shown(read_url) == (masked or url)
