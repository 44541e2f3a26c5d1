"""Every spelling of a domain is brought into one form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.support.addresses import ascii_domain, ip_address


@pytest.mark.parametrize(
    ("written", "form"),
    [
        ("shop.example", "shop.example"),
        ("Shop.EXAMPLE", "shop.example"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("BÜCHER.example", "xn--bcher-kva.example"),
        ("bu\u0308cher.example", "xn--bcher-kva.example"),
        ("XN--BCHER-KVA.example", "xn--bcher-kva.example"),
        ("www。bücher．example", "www.xn--bcher-kva.example"),  # noqa: RUF001 - dots that browsers read as dots
        ("faß.example", "xn--fa-hia.example"),
        ("a_b.bücher.example", "a_b.xn--bcher-kva.example"),
        ("i❤.ws", "xn--i-7iq.ws"),
        ("ﬁsh.example", "fish.example"),
        ("例え.テスト", "xn--r8jz45g.xn--zckzah"),
        ("", ""),
    ],
)  # fmt: skip
def test_a_domain_has_the_form_that_browsers_send(written: str, form: str) -> None:
    assert ascii_domain(written) == form


@given(st.text())
def test_normalising_a_domain_again_changes_nothing(text: str) -> None:
    form = ascii_domain(text)
    if form.isascii():
        assert ascii_domain(form) == form


def test_text_longer_than_any_domain_is_left_alone() -> None:
    assert ascii_domain("Ü" * 100_000) == "ü" * 100_000


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "[2001:db8::1]"])
def test_addresses_are_recognised(host: str) -> None:
    assert str(ip_address(host)) == host.strip("[]")


@pytest.mark.parametrize("host", ["::1", "[127.0.0.1]", "localhost", "1.2.3", "127.0.0.1.example", "[", ""])
def test_anything_else_is_not_an_address(host: str) -> None:
    assert ip_address(host) is None
