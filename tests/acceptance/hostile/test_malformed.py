"""Malformed and ambiguous HTTP is refused, and the bytes after it on the connection are ignored."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from tests.support.daemon import BASE, Daemon, Shop, sign
from tests.support.rawhttp import Client, assert_refused, chunked, counting, event, head, post, talk

TARGET = f"{BASE}/track".encode()
GOOD = event()

REQUEST_LINES = {
    "HTTP/0.9": b"GET /",
    "HTTP/2 preface": b"PRI * HTTP/2.0",
    "HTTP/3": b"POST %b HTTP/3.0" % TARGET,
    "no version": b"POST %b" % TARGET,
    "no target": b"POST HTTP/1.1",
    "one word": b"POST",
    "two spaces": b"POST  %b HTTP/1.1" % TARGET,
    "space at the end": b"POST %b HTTP/1.1 " % TARGET,
    "space at the start": b" POST %b HTTP/1.1" % TARGET,
    "space in the target": b"POST %b ? HTTP/1.1" % TARGET,
    "tabs": b"POST\t%b\tHTTP/1.1" % TARGET,
    "NUL in the target": b"POST %b\0 HTTP/1.1" % TARGET,
    "NUL in the method": b"PO\0ST %b HTTP/1.1" % TARGET,
    "method no token": b"PO(ST %b HTTP/1.1" % TARGET,
    "lower-case version": b"POST %b http/1.1" % TARGET,
    "long version": b"POST %b HTTP/1.10" % TARGET,
    "another protocol": b"POST %b ICY/1.1" % TARGET,
    "bare CR": b"POST %b HTTP/1.1\rX: y" % TARGET,
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(14, 60)),
    "SSH": b"SSH-2.0-OpenSSH_9.2",
    "SMTP": b"EHLO shop.example",
}

# Only `/path` and `http://host/path` are valid targets.
TARGETS = {
    "the server as a whole": b"*",
    "an authority": b"shop.example:443",
    "a relative path": TARGET[1:],
    "a query alone": b"?a=b",
    "an escape alone": b"%%2F%b" % TARGET[1:],
    "no scheme": b"//shop.example%b" % TARGET,
    "two slashes": b"/%b" % TARGET,
    "one slash behind the scheme": b"http:/%b" % TARGET[1:],
    "no slash behind the scheme": b"http:%b" % TARGET[1:],
    "three slashes": b"http://%b" % TARGET,
    "another scheme": b"ftp://shop.example%b" % TARGET,
    "a scheme of scripts": b"javascript://shop.example%b" % TARGET,
    "a WebSocket": b"wss://shop.example%b" % TARGET,
    "no host": b"http://",
    "a port without a host": b"http://:80%b" % TARGET,
    "a port that is no number": b"http://shop.example:http%b" % TARGET,
    "two ports": b"http://shop.example:80:80%b" % TARGET,
    "a user": b"http://me@shop.example%b" % TARGET,
    "a user and a password": b"http://me:secret@shop.example%b" % TARGET,
    "half an address": b"http://[::1%b" % TARGET,
    "an address of letters": b"http://[shop]%b" % TARGET,
    "a backslash for a slash": b"/\\shop.example%b" % TARGET,
    "a backslash in the host": b"http://shop.example\\@another%b" % TARGET,
    "a fragment": b"%b#a" % TARGET,
    "an empty fragment": b"%b#" % TARGET,
    "a fragment behind a query": b"%b?a=b#c" % TARGET,
    "a fragment behind a host": b"http://shop.example#%b" % TARGET,
    "UTF-8": b"%b?q=caf\xc3\xa9" % TARGET,
    "ISO 8859-1": b"%b?q=caf\xe9" % TARGET,
    "UTF-8 in the host": b"http://caf\xc3\xa9.example%b" % TARGET,
    "DEL": b"%b?\x7f" % TARGET,
    "a C1 control": b"%b?\x9b" % TARGET,
    "a control": b"%b?\x01" % TARGET,
    "a backspace": b"%b\b" % TARGET,
}

HEADERS = {
    "no colon": b"X-Header",
    "space before the colon": b"X-Header : value",
    "tab before the colon": b"X-Header\t: value",
    "space in the name": b"X Header: value",
    "no name": b": value",
    "folded": b"X-Header: value\r\n folded",
    "folded with a tab": b"X-Header: value\r\n\tfolded",
    "NUL in the name": b"X\0Header: value",
    "NUL in the value": b"X-Header: val\0ue",
    "control character": b"X-Header: val\x01ue",
    "bare CR": b"X-Header: val\rue",
    "name not ASCII": b"X-H\xe9ader: value",
    "name in brackets": b"(X-Header): value",
}

HOSTS = {
    "no host": b"",
    "two hosts": b"Host: shop\r\nHost: another\r\n",
    "the same host twice": b"Host: shop\r\nHost: shop\r\n",
    "two hosts in one": b"Host: shop, another\r\n",
    "a host with a path": b"Host: shop/another\r\n",
    "a host with a user": b"Host: me@shop\r\n",
    "a host with a space": b"Host: shop another\r\n",
}

LENGTHS = {
    **{
        f"length {text!r}": f"Content-Length: {text}"
        for text in ("+5", "-5", "-0", "0x5", "5 5", "5,6", "5, 6", "5;", "5.0", "1e3", "5_0", "five", "", "\xb2", "5,")
    },
    "lengths that differ": "Content-Length: 5\r\nContent-Length: 6",
    "lengths written differently": "Content-Length: 5\r\nContent-Length: 05",
    "length and chunked": "Content-Length: 5\r\nTransfer-Encoding: chunked",
    "chunked and length": "Transfer-Encoding: chunked\r\nContent-Length: 5",
    **{
        f"encoding {text!r}": f"Transfer-Encoding: {text}"
        for text in (
            "gzip", "gzip, chunked", "chunked, gzip", "chunked, chunked", "identity", "xchunked", "chunked;q=1", ""
        )
    },
    "chunked twice": "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
}  # fmt: skip

CHUNKS = {
    **{
        f"size {text!r}": text + b"\r\n" + b"x" * 5 + b"\r\n0\r\n\r\n"
        for text in (b"g", b"-5", b"+5", b"0x5", b"", b" 5", b"5_0", b"five", b"\xb2", b"0" * 80 + b"5", b"5" * 80)
    },
    "size beyond 64 bits": b"f" * 40 + b"\r\nx",
    "shorter than its size": b"9\r\nxxxxx\r\n0\r\n\r\n",
    "longer than its size": b"3\r\nxxxxx\r\n0\r\n\r\n",
    "no end": b"5\r\nxxxxx0\r\n\r\n",
    "words after the last": b"5\r\nxxxxx\r\n0\r\nno trailer",
}


def assert_only_answer(daemon: Daemon, request: bytes) -> None:
    """The only answer says that the request is not HTTP. The bytes after it are ignored."""
    with Client(daemon.port) as client:
        client.send(request)
        reply, *others = client.end()
    assert_refused(reply, 400, "invalid_http")
    assert others == [], request


def assert_refuses_each(daemon: Daemon, requests: Iterable[bytes], **counted: int) -> None:
    """All are sent at the same time, because a refusal may be held back for a second."""
    with counting(daemon, **counted), ThreadPoolExecutor(100) as threads:
        list(threads.map(partial(assert_only_answer, daemon), requests))


def test_a_malformed_request_line_is_refused(shop: Shop, daemon: Daemon) -> None:
    rest = b"\r\nHost: shop\r\n\r\n" + post(shop.public.id, GOOD)
    assert_refuses_each(daemon, [line + rest for line in REQUEST_LINES.values()])


def test_a_malformed_header_is_refused(shop: Shop, daemon: Daemon) -> None:
    key = shop.public.id
    assert_refuses_each(daemon, [post(key, GOOD, line) + post(key, GOOD) for line in HEADERS.values()])


def test_a_request_names_one_host(shop: Shop, daemon: Daemon) -> None:
    whole = post(shop.public.id, GOOD)
    assert_refuses_each(daemon, [whole.replace(b"Host: shop\r\n", lines) + whole for lines in HOSTS.values()])


def test_a_length_that_is_not_one_plain_number_is_refused(shop: Shop, daemon: Daemon) -> None:
    # A second reader such as a proxy could take the next bytes for another request. They must get no answer.
    rest = b"0\r\n\r\n" + post(shop.public.id, GOOD)
    requests = [head(shop.public.id, lines) + rest for lines in LENGTHS.values()]
    assert_refuses_each(daemon, requests, invalid=len(requests))


def test_a_malformed_chunk_is_refused(shop: Shop, daemon: Daemon) -> None:
    start, rest = head(shop.public.id, "Transfer-Encoding: chunked"), post(shop.public.id, GOOD)
    assert_refuses_each(daemon, [start + body + rest for body in CHUNKS.values()], invalid=len(CHUNKS))


def test_a_body_in_thousands_of_chunks_is_refused(shop: Shop, daemon: Daemon) -> None:
    body = event({"title": "x" * 900})
    for count, outcome in ((1000, "accepted"), (2000, "invalid")):
        request = head(shop.public.id, "Transfer-Encoding: chunked") + chunked(
            *[bytes([byte]) for byte in body.ljust(count)]
        )
        with counting(daemon, **{outcome: 1}):
            [reply] = talk(daemon.port, request)
        if outcome == "accepted":
            assert reply.status == 200
        else:
            assert_refused(reply, 400, "invalid_http")


def test_a_refused_body_of_megabytes_does_not_hide_its_answer(shop: Shop, daemon: Daemon) -> None:
    large = b" " * (7 << 20)
    with counting(daemon, invalid=1, too_large=2):
        [reply] = talk(daemon.port, head("another", "Transfer-Encoding: chunked") + b"1\r\nx\r\n" * (1 << 20))
        assert_refused(reply, 400, "invalid_http")
        for key in (shop.public.id, "another"):
            [reply] = talk(daemon.port, head(key, f"Content-Length: {len(large)}") + large)
            assert_refused(reply, 413, "too_large")


def test_a_body_more_than_a_mebibyte_too_large_is_refused_before_it_is_sent(shop: Shop, daemon: Daemon) -> None:
    limits = {"/track": 1 << 20, "/batch": 4 << 20}
    with counting(daemon, too_large=len(limits)):
        for path, limit in limits.items():
            with Client(daemon.port) as client:
                client.send(head("another", f"Content-Length: {limit + (1 << 20) + 1}", path=path))
                assert_refused(client.reply(), 413, "too_large")


def test_a_length_of_thousands_of_digits_is_too_large(shop: Shop, daemon: Daemon) -> None:
    with counting(daemon, too_large=1):
        [reply] = talk(daemon.port, head(shop.public.id, "Content-Length: " + "9" * 10_000))
    assert_refused(reply, 413, "too_large")


# Valid requests that are rare


def unusual(key: str) -> list[bytes]:
    whole = post(key, GOOD)
    size = f"{len(GOOD):x}".encode()
    return [
        whole.replace(b"POST /", b"POST http://shop.example/"),
        whole.replace(b"POST /", b"POST HTTPS://shop.example:443/"),
        whole.replace(b"Authorization:", b"aUTHORIZATION:").replace(b"Content-Length", b"content-length"),
        head(key, f"Content-Length:\t {len(GOOD)} \t").replace(b": ", b":") + GOOD,
        b"\r\n" + whole,
        whole.replace(b"HTTP/1.1", b"HTTP/1.0"),
        whole.replace(b"HTTP/1.1", b"HTTP/1.0").replace(b"Host: shop\r\n", b""),
        whole.replace(b"Host: shop", b"Host:"),
        whole.replace(b"Host: shop", b"host: [2001:db8::1]:8080"),
        head(key, f"Content-Length: {len(GOOD):020}") + GOOD,
        head(key, "Transfer-Encoding: Chunked") + chunked(GOOD),
        head(key, "Transfer-Encoding: chunked") + chunked(*(GOOD[at : at + 1] for at in range(len(GOOD)))),
        head(key, "Transfer-Encoding: chunked") + size + b";name=value\r\n" + GOOD + b"\r\n0\r\n\r\n",
        head(key, "Transfer-Encoding: chunked") + size + b"\r\n" + GOOD + b"\r\n0\r\nX-Trailer: value\r\n\r\n",
        post(key, GOOD, "Expect: 100-continue"),
        post(key, GOOD, "Content-Type: text/plain", "Content-Type: image/png"),
        post(key, GOOD, "X-Header: caf\xe9 \xff"),
        post(key, GOOD, "Upgrade: h2c", "Connection: Upgrade, HTTP2-Settings", "HTTP2-Settings: AAMAAABkAAQAAP__"),
    ]


def test_unusual_requests_are_understood(shop: Shop, daemon: Daemon) -> None:
    requests = unusual(shop.public.id)
    with counting(daemon, accepted=len(requests)):
        for request in requests:
            assert [reply.status for reply in talk(daemon.port, request)] == [200], request


def test_optional_syntax_is_refused_or_understood_but_not_misread(shop: Shop, daemon: Daemon) -> None:
    key = shop.public.id
    for request in (
        post(key, GOOD).replace(b"\r\n", b"\n"),
        head(key, f"Content-Length: {len(GOOD)}", f"Content-Length: {len(GOOD)}") + GOOD,
        head(key, f"Content-Length: {len(GOOD)}, {len(GOOD)}") + GOOD,
    ):
        first, *others = talk(daemon.port, request + post(key, GOOD))
        if first.status == 200:
            assert [reply.status for reply in others] == [200]
        else:
            assert_refused(first, 400, "invalid_http")
            assert others == []


def test_a_target_is_a_path_or_a_whole_address(shop: Shop, daemon: Daemon) -> None:
    whole = post(shop.public.id, GOOD)
    requests = [whole.replace(b"POST", method, 1) for method in (b"POST", b"OPTIONS", b"CONNECT")]
    assert_refuses_each(
        daemon, [each.replace(TARGET, target, 1) + whole for target in TARGETS.values() for each in requests]
    )


def test_a_whole_address_is_routed_by_its_path(shop: Shop, daemon: Daemon) -> None:
    whole = post(shop.public.id, GOOD)
    starts = (
        b"http://shop", b"https://shop.example", b"HTTP://Shop.Example:80", b"http://shop:", b"http://127.0.0.1:8080",
        b"http://[::1]:80", b"http://[2001:db8::1]", b"http://%41.example",
    )  # fmt: skip
    queries = (b"", b"?", b"?a=b", b"?a=/b?c:@//&{|}[]\\^`<>'\"")
    with counting(daemon, accepted=len(starts) + len(queries) - 1):
        for target in (*(start + TARGET for start in starts), *(TARGET + query for query in queries[1:])):
            [reply] = talk(daemon.port, whole.replace(TARGET, target, 1))
            assert reply.status == 200, target


def test_requests_with_other_methods_and_paths_are_no_events(shop: Shop, daemon: Daemon) -> None:
    whole = post(shop.public.id, GOOD)
    with counting(daemon):
        for method in (b"post", b"Post", b"TRACE", b"CONNECT", b"PRI", b"X" * 1000):
            [reply] = talk(daemon.port, whole.replace(b"POST", method, 1))
            assert_refused(reply, 405, "method_not_allowed", closes=False)
        for target in (
            b"/",
            b"http://shop.example",
            b"https://shop.example?a=/b",
            b"/a//b",
            b"/%00",
            b"/:x@y",
            b"/{|}^`",
        ):
            [reply] = talk(daemon.port, whole.replace(TARGET, target, 1))
            assert_refused(reply, 404, "not_found", closes=False)


# Repeated headers


def test_a_repeated_credential_is_refused(shop: Shop, daemon: Daemon) -> None:
    good, bad = f"Authorization: Bearer {shop.public.id}", "Authorization: Bearer another"
    with counting(daemon, unauthorized=3):
        for second in (good, bad):
            [reply] = talk(daemon.port, post(shop.public.id, GOOD, second))
            assert_refused(reply, 401, "invalid_key", closes=False)
        [reply] = talk(daemon.port, post("another", GOOD, good))
        assert_refused(reply, 401, "invalid_key", closes=False)


def test_a_repeated_signature_is_refused(shop: Shop, daemon: Daemon) -> None:
    good, bad = f"x-signature: {sign(shop.server.secret, GOOD)}", "x-signature: " + "0" * 64
    with counting(daemon, unauthorized=3, accepted=1):
        for pair in ((good, bad), (bad, good), (good, good)):
            [reply] = talk(daemon.port, post(shop.server.id, GOOD, *pair, path="/customer-events"))
            assert_refused(reply, 401, "invalid_signature", closes=False)
        [reply] = talk(daemon.port, post(shop.server.id, GOOD, good, path="/customer-events"))
        assert reply.status == 200


def test_a_repeated_encoding_is_not_supported(shop: Shop, daemon: Daemon) -> None:
    with counting(daemon, invalid=1):
        [reply] = talk(daemon.port, post(shop.public.id, GOOD, "Content-Encoding: gzip", "Content-Encoding: gzip"))
    assert_refused(reply, 415, "unsupported_encoding", closes=False)


# Headers too large


def test_headers_up_to_the_limit_are_read_and_larger_ones_refused(shop: Shop, daemon: Daemon) -> None:
    key = shop.public.id
    empty = len(head(key, "X: ", f"Content-Length: {len(GOOD)}"))
    [reply] = talk(daemon.port, post(key, GOOD, "X: " + "x" * (16_384 - empty)))
    assert reply.status == 200
    own = 4  # `post` writes Host, Authorization and Content-Length; one more line is spare
    [reply] = talk(daemon.port, post(key, GOOD, *(f"X-{number}: x" for number in range(100 - own))))
    assert reply.status == 200
    large = [
        post(key, GOOD, "X: " + "x" * 20_000),
        post(key, GOOD, "X: " + "x" * 1_000_000),
        post(key, GOOD, *(f"X-{number}: {'x' * 1000}" for number in range(50))),
        post(key, GOOD, *(["X: x"] * 10_000)),
        post(key, GOOD).replace(b" HTTP/1.1", b"?" + b"x" * 20_000 + b" HTTP/1.1"),
        b"x" * 1_000_000,
        b"X: x\r\n" * 200_000,
    ]
    with counting(daemon):
        for request in large:
            [reply] = talk(daemon.port, request)
            assert_refused(reply, 431, "headers_too_large")


def test_too_many_headers_are_refused(shop: Shop, daemon: Daemon) -> None:
    many = [*(f"X-{number}: x" for number in range(101))]
    with counting(daemon, invalid=2):
        for lines in (many, ["X: x"] * 101):
            [reply] = talk(daemon.port, post(shop.public.id, GOOD, *lines) + post(shop.public.id, GOOD))
            assert_refused(reply, 431, "headers_too_large")
