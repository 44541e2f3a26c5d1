"""Origins and host names in the configuration are normalised, or refused with a suggestion."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.api.errors import ConfigError
from ingestd.api.options import HostName, Origin
from ingestd.config import Config, parse_config


def configured(section: str, option: str, value: object) -> Config:
    return parse_config({section: {option: [value]}}, source="x.toml", base=Path("/"))


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ("*", "*"),
        ("null", "null"),
        ("https://shop.example", "https://shop.example"),
        ("https://shop.example/", "https://shop.example"),
        (" https://shop.example ", "https://shop.example"),
        ("HTTPS://Shop.Example", "https://shop.example"),
        ("https://shop.example:443", "https://shop.example"),
        ("https://shop.example:0443/", "https://shop.example"),
        ("https://shop.example:", "https://shop.example"),
        ("http://shop.example:80", "http://shop.example"),
        ("http://shop.example:443", "http://shop.example:443"),
        ("https://shop.example:80", "https://shop.example:80"),
        ("https://shop.example:8443/", "https://shop.example:8443"),
        ("https://bücher.example", "https://xn--bcher-kva.example"),
        ("https://b%C3%BCcher.example", "https://xn--bcher-kva.example"),
        ("https://XN--BCHER-KVA.example:443/", "https://xn--bcher-kva.example"),
        ("https://faß.example", "https://xn--fa-hia.example"),
        ("https://my_shop.example", "https://my_shop.example"),
        ("http://localhost:3000", "http://localhost:3000"),
        ("http://127.0.0.1:3000", "http://127.0.0.1:3000"),
        ("http://127.1", "http://127.0.0.1"),
        ("http://[::1]:3000/", "http://[::1]:3000"),
        ("http://[2001:DB8:0:0::1]:80", "http://[2001:db8::1]"),
        ("http://[::ffff:127.0.0.1]", "http://[::ffff:7f00:1]"),
        ("capacitor://localhost", "capacitor://localhost"),
        ("chrome-extension://abcdef/", "chrome-extension://abcdef"),
    ],
)
def test_an_origin_is_brought_into_the_form_that_browsers_send(written: str, sent: str) -> None:
    assert configured("http", "allowed_origins", written).http.allowed_origins == (sent,)
    assert Origin.parse(sent) == sent


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("shop.example", "https://shop.example"),
        ("shop.example/", "https://shop.example"),
        ("shop.example:8443", "https://shop.example:8443"),
        ("//shop.example", "https://shop.example"),
        ("localhost:3000", "http://localhost:3000"),
        ("127.0.0.1:3000", "http://127.0.0.1:3000"),
        ("bücher.example", "https://xn--bcher-kva.example"),
        ("https:shop.example", "https://shop.example"),
        ("https:/shop.example", "https://shop.example"),
        ("https://shop.example/cart", "https://shop.example"),
        ("https://shop.example//", "https://shop.example"),
        ("https://Shop.example:443/cart?x=1#y", "https://shop.example"),
        ("https://shop.example?x=1", "https://shop.example"),
        ("https://shop.example#y", "https://shop.example"),
        ("https://shop.example\\cart", "https://shop.example"),
        ("https://user@shop.example", "https://shop.example"),
        ("https://*.shop.example", "https://shop.example"),
        ("wss://shop.example", "https://shop.example"),
        ("http://::1", "http://[::1]"),
        ("file:///index.html", "null"),
        ("https://*", "*"),
    ],
)
def test_an_origin_that_no_browser_sends_is_refused_with_a_suggestion(written: str, meant: str) -> None:
    with pytest.raises(ConfigError) as raised:
        configured("http", "allowed_origins", written)
    assert str(raised.value).startswith("x.toml: http.allowed_origins[0]: ")
    assert f'"{meant}"' in str(raised.value)
    assert Origin.parse(meant) == meant


@pytest.mark.parametrize(
    "written",
    ["", " ", "/", "https://", "https:///", "https://a b", "https://shop.example:x", "https://shop.example:65536",
     "..", "https://..", "https://.example", "http://1.2.3.4.5", "http://[::1%25eth0]", "http://[1.2.3.4]", "http://[",
     7, None, True, "https://shop.example, https://other.example"],
)  # fmt: skip
def test_a_text_that_is_not_an_origin_is_refused(written: object) -> None:
    with pytest.raises(ConfigError, match=r"^x\.toml: http\.allowed_origins\[0\]: "):
        configured("http", "allowed_origins", written)


@pytest.mark.parametrize(
    "written", ["https://user:hunter2@shop.example", "user:hunter2@shop.example", "https://hunter2@"]
)
def test_a_password_in_an_origin_is_not_shown(written: str) -> None:
    with pytest.raises(ConfigError) as raised:
        configured("http", "allowed_origins", written)
    assert "hunter2" not in str(raised.value)


@given(st.text() | st.text("htps:/.*[]@?#0123456789é").map("https://".__add__))
def test_any_text_becomes_an_origin_or_is_refused(text: str) -> None:
    try:
        origin = Origin.parse(text)
    except ValueError:
        return
    assert Origin.parse(origin) == origin


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("*", "*"),
        ("ingestd.example", "ingestd.example"),
        ("Ingestd.Example.", "ingestd.example"),
        ("ingestd", "ingestd"),
        ("ingestd_1", "ingestd_1"),
        ("*.example", "*.example"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("*.bücher.example", "*.xn--bcher-kva.example"),
        ("10.0.0.1", "10.0.0.1"),
        ("::1", "[::1]"),
        ("[2001:DB8::0:1]", "[2001:db8::1]"),
    ],
)
def test_a_name_is_brought_into_the_form_of_the_host_header(written: str, name: str) -> None:
    assert configured("ops", "allowed_hosts", written).ops.allowed_hosts == (name,)
    assert HostName.parse(name) == name


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("ingestd.example:9464", "ingestd.example"),
        ("http://ingestd.example:9464/metrics", "ingestd.example"),
        ("ingestd.example/", "ingestd.example"),
        (".example", "*.example"),
        ("*.example:9464", "*.example"),
        ("[::1]:9464", "[::1]"),
    ],
)
def test_a_name_inside_other_text_is_refused_with_the_name(written: str, meant: str) -> None:
    with pytest.raises(ConfigError) as raised:
        configured("ops", "allowed_hosts", written)
    assert str(raised.value).startswith("x.toml: ops.allowed_hosts[0]: expected the name of a host")
    assert f'did you mean "{meant}"?' in str(raised.value)


@pytest.mark.parametrize("written", ["", "*.", "**", "a.*.example", "*example", "a b", "a,b", "..", 7, None])
def test_a_text_that_is_not_a_name_is_refused(written: object) -> None:
    with pytest.raises(ConfigError, match=r"^x\.toml: ops\.allowed_hosts\[0\]: expected the name of a host"):
        configured("ops", "allowed_hosts", written)
