"""Keys of the state: tenants never share a key, and keys that occur once do not displace cached ones."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ingestd.api.store import key_digest, passing_key, state_key

PARTS = st.text(st.characters(codec=None))  # with lone surrogates, which JSON can contain


@given(PARTS, PARTS)
def test_a_key_has_a_bounded_length_and_is_the_same_with_and_without_the_cache(tenant: str, part: str) -> None:
    key = state_key("kind", tenant, part)
    assert key == f"kind:{key_digest(tenant, part)}" == passing_key("kind", tenant, part)
    assert len(key) == len("kind:") + 32
    assert key.isascii()


@given(PARTS, PARTS, PARTS)
def test_no_tenant_reaches_the_key_of_another(tenant: str, part: str, more: str) -> None:
    keys = {state_key("kind", name, rest) for name, rest in ((tenant, more + part), (tenant + more, part))}
    assert len(keys) == (1 if not more else 2)


def test_keys_that_occur_once_do_not_displace_keys_of_visitors() -> None:
    def made() -> list[str]:
        names = [f"visitor {number}" for number in range(10)]
        return [key for name in names for key in (state_key("session", "shop", name), key_digest("shop", name))]

    before = made()
    for number in range(100_000):
        passing_key("message", "shop", f"message {number}")
    assert all(one is other for one, other in zip(before, made(), strict=True))
