"""The client address of a request: the daemon believes trusted proxies only."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tornado.httputil import HTTPHeaders

from ingestd.http.client_address import Peers
from ingestd.pipeline.event_parser import truncated

PROXIES = ["10.0.0.0/8", "fd00::/8"]


def client(peer: str, *forwarded: str, trusted: Sequence[str] = PROXIES) -> str:
    """The client's address for these headers in this order."""
    headers = HTTPHeaders()
    for each in forwarded:
        headers.add("x-forwarded-for", each)
    return Peers(trusted).client(peer, headers)


@pytest.mark.parametrize(
    ("peer", "forwarded", "address"),
    [
        ("203.0.113.7", [], "203.0.113.7"),
        ("203.0.113.7", ["198.51.100.1"], "203.0.113.7"),  # not a trusted proxy: anyone can write the header
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.7"], "203.0.113.7"),
        ("fd00::1", ["203.0.113.7"], "203.0.113.7"),
        ("fd00::1%eth0", ["203.0.113.7"], "203.0.113.7"),
        ("::ffff:10.0.0.1", ["203.0.113.7"], "203.0.113.7"),
        # A proxy appends to the right of the text that the client sent.
        ("10.0.0.1", ["198.51.100.1, 203.0.113.7"], "203.0.113.7"),
        ("10.0.0.1", ["10.9.9.9,203.0.113.7"], "203.0.113.7"),
        ("10.0.0.1", ["203.0.113.7, 10.0.0.2, fd00::3"], "203.0.113.7"),
        ("10.0.0.1", ["198.51.100.1, 203.0.113.7, 10.0.0.2"], "203.0.113.7"),
        # If all are trusted, the left-most counts.
        ("10.0.0.1", ["10.0.0.9, 10.0.0.2"], "10.0.0.9"),
        # Several headers count as one.
        ("10.0.0.1", ["198.51.100.1", "203.0.113.7", "10.0.0.2"], "203.0.113.7"),
        ("10.0.0.1", ["203.0.113.7, 10.0.0.3", "10.0.0.2"], "203.0.113.7"),
        # Forms of an entry.
        ("10.0.0.1", ["203.0.113.7:4711"], "203.0.113.7"),
        ("10.0.0.1", ["198.51.100.1,\t203.0.113.7 , 10.0.0.2"], "203.0.113.7"),
        ("10.0.0.1", ["2001:DB8:0::7"], "2001:db8::7"),
        ("10.0.0.1", ["[2001:db8::7]"], "2001:db8::7"),
        ("10.0.0.1", ["[2001:db8::7]:99"], "2001:db8::7"),
        ("10.0.0.1", ["fe80::1%eth0"], "fe80::1"),
        ("10.0.0.1", ["[fe80::1%eth0]:99"], "fe80::1"),
        ("10.0.0.1", ["::ffff:203.0.113.7"], "203.0.113.7"),
        ("10.0.0.1", ["[::ffff:cb00:7107]:99"], "203.0.113.7"),
        ("10.0.0.1", ["203.0.113.7, ::ffff:10.0.0.2"], "203.0.113.7"),
        # An invalid entry ends the search at the address to its right.
        ("10.0.0.1", [""], "10.0.0.1"),
        ("10.0.0.1", ["nonsense"], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.7, unknown"], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.7, unknown, 10.0.0.2"], "10.0.0.2"),
        ("10.0.0.1", ["203.0.113.7,, 10.0.0.2"], "10.0.0.2"),
        ("10.0.0.1", ["unix:"], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.256"], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.007"], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.7/32"], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.7:"], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.7:port"], "10.0.0.1"),
        ("10.0.0.1", ["[2001:db8::7"], "10.0.0.1"),
        ("10.0.0.1", ["[[2001:db8::7]]"], "10.0.0.1"),
        ("10.0.0.1", ["fe80::1%" + "x" * 200], "10.0.0.1"),
    ],
)
def test_trusted_proxies_name_the_client(peer: str, forwarded: list[str], address: str) -> None:
    assert client(peer, *forwarded) == address


@pytest.mark.parametrize("trusted", [[], PROXIES])
@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("2001:db8::7", "2001:db8::7"),
        ("fe80::1%eth0", "fe80::1"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("0.0.0.0", ""),  # Tornado's address of a Unix socket
        ("", ""),
    ],
)
def test_without_a_proxy_the_connection_has_the_address_of_the_client(
    trusted: list[str], peer: str, address: str
) -> None:
    assert client(peer, "198.51.100.1", trusted=trusted) == address


def test_a_proxy_may_be_named_by_its_address() -> None:
    trusted = ["192.0.2.1", "2001:db8::1"]
    for proxy in trusted:
        assert client(proxy, "203.0.113.7", trusted=trusted) == "203.0.113.7"
    assert client("192.0.2.2", "203.0.113.7", trusted=trusted) == "192.0.2.2"


def test_a_very_long_chain_of_proxies_is_not_followed() -> None:
    assert client("10.0.0.1", ", ".join(["203.0.113.7", *["10.0.0.2"] * 20])) == "203.0.113.7"
    assert client("10.0.0.1", ", ".join(["203.0.113.7", *["10.0.0.2"] * 2000])) == "10.0.0.2"


words = st.text(alphabet="0123456789.:,[]% afx", max_size=200).map(
    str.strip
)  # HTTP removes blanks around the value of a header


@given(words)
def test_without_trusted_proxies_the_header_is_ignored(forwarded: str) -> None:
    assert client("10.0.0.1", forwarded, trusted=[]) == "10.0.0.1"


@given(words, st.ip_addresses())
def test_no_text_of_a_client_hides_the_address_that_its_proxy_appends(
    written: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address
) -> None:
    told = client("10.0.0.1", f"{written}, {address}")
    plain = getattr(address, "ipv4_mapped", None) or address
    if not any(plain in ipaddress.ip_network(proxy) for proxy in PROXIES):
        assert told == str(plain)


@given(words, words)
def test_any_header_gives_an_address(first: str, second: str) -> None:
    told = client("10.0.0.1", first, second)
    assert str(ipaddress.ip_address(told)) == told


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_is_truncated_to_its_24_bits(address: ipaddress.IPv4Address) -> None:
    assert truncated(str(address)) == str(ipaddress.ip_network(f"{address}/24", strict=False)[0])


@given(st.ip_addresses(v=6))
def test_an_ipv6_address_is_truncated_to_its_48_bits(address: ipaddress.IPv6Address) -> None:
    network = ipaddress.ip_network(f"{address}/48", strict=False)
    assert ipaddress.ip_address(truncated(str(address))) == network[0]


def test_a_truncated_address_is_written_as_an_address() -> None:
    assert truncated("203.0.113.7") == "203.0.113.0"
    assert truncated("2001:db8:1:2:3:4:5:6") == "2001:db8:1::"
