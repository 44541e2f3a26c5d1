"""The files of the browser client: size, versions, names in the documentation, and what it reads in an address."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ingestd import RELEASE
from ingestd.plugins.attribution.touches import CAMPAIGN_FIELDS, campaign_of
from ingestd.plugins.segment.names import EventNames
from scripts import browser_types, docs_site
from tests.support.daemon import PATIENCE
from tests.support.event_keys import KEYS

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "clients" / "browser"
SOURCES = {path.name: path.read_text() for path in sorted((FOLDER / "src").iterdir())}
SNIPPET = (FOLDER / "snippet.html").read_text()
TYPES = (FOLDER / "ingestd.d.ts").read_text()
DOCS = (ROOT / "docs" / "browser-client.md").read_text()
FUNCTIONS = re.findall(r"^export const (\w+) = [^{]", SOURCES["api.js"], re.MULTILINE)


def section(title: str) -> str:
    return DOCS.partition(f"## {title}\n")[2].partition("\n## ")[0]


def source(expression: str, *modules: str) -> Any:
    """The value of an expression in Node.js, with everything that the modules export."""
    imports = [f"import * as m{index} from './{module}'" for index, module in enumerate(modules)]
    names = ", ".join(f"...m{index}" for index in range(len(modules)))
    program = f"{chr(10).join(imports)}\nconst client = {{ {names} }}\nconsole.log(JSON.stringify({expression}))"
    done = subprocess.run(
        ["node", "--input-type=module", "--eval", program],
        cwd=FOLDER / "src", capture_output=True, text=True, timeout=PATIENCE, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", ["ingestd.js", "ingestd.classic.js"])
def test_the_client_has_at_most_six_kilobytes(name: str) -> None:
    assert len(gzip.compress((FOLDER / name).read_bytes())) <= 6000  # bytes


def test_versions_are_those_of_ingestd() -> None:
    assert re.findall(r"version: '([^']*)'", "".join(SOURCES.values())) == [RELEASE]
    for folder in (FOLDER, FOLDER.with_name("node")):
        assert json.loads((folder / "package.json").read_text())["version"] == RELEASE


def test_the_types_of_events_are_made_from_the_schemas() -> None:
    assert {file.read_text() for file in browser_types.FILES} == {browser_types.text()}, "run `make browser-types`"


def test_the_snippet_and_the_types_have_every_function_and_option() -> None:
    assert f"```html\n{SNIPPET}```" in (ROOT / "docs" / "browser.md").read_text()
    assert re.findall(r"'(\w+)',", SNIPPET.partition(" of [")[2].partition("]")[0]) == FUNCTIONS
    assert {*re.findall(r"\w+", SOURCES["index.js"].partition("{")[2].partition("}")[0])} == {*FUNCTIONS}
    assert {*re.findall(r"^ *(?:/\*\*|\*/).*\nexport function (\w+)", TYPES, re.MULTILINE)} == {*FUNCTIONS}
    assert TYPES in docs_site.browser()
    options = re.search(r"interface Options \{(.*?)\n\}", TYPES, re.DOTALL)
    assert options is not None
    names = re.findall(r"\*/\n  (\w+)\??: ", options[1])
    used = {*re.findall(r"options\??\.(\w+)", "".join(SOURCES.values()))}
    for taken in re.findall(r"const \{ ([\w, ]+) \} = (?:state\.)?options\b", "".join(SOURCES.values())):
        used |= {*taken.split(", ")}
    assert used == {*names}


def test_the_words_of_secrets_and_the_reasons_of_drops_are_documented() -> None:
    words = source("client.SECRETS", "addresses.js").split()
    assert ", ".join(f"`{word}`" for word in words) in " ".join(DOCS.split())
    code = "".join(SOURCES.values())
    reasons = {*re.findall(r"(?:count\(|drop\([\w.]+, )'(\w+)'", code), "id", "consent", "campaign", "storage"}
    rows = re.findall(r"^\| (`.*?`) \|", section("What got lost"), re.MULTILINE)
    assert {*re.findall(r"\w+", " ".join(rows))} == reasons


def test_the_client_knows_every_key_and_the_spellings_that_the_intake_of_sdks_knows() -> None:
    names = [spelt for key in KEYS for spelt in (key, key.lower(), key.replace(" ", "_").lower(), key.replace(" ", ""))]
    names += ["Completed Order", "viewed_product", "Added Product to Wishlist", "Searched Products", "viewed-cart"]
    own = ["back_in_stock", "Order Completed 2", "toString", ""]
    found = source(f"{json.dumps(names + own)}.map(client.keyOf)", "names.js")
    find = EventNames(KEYS, {}).find
    assert found == [find(name) for name in names] + own


def test_the_client_and_the_daemon_read_the_same_campaign_in_an_address() -> None:
    vectors = json.loads((ROOT / "tests" / "data" / "campaign_addresses.json").read_text())
    addresses = [address for address, _ in vectors]
    by_client = source(f"{json.dumps(addresses)}.map((each) => client.campaignOf(each, []) ?? null)", "addresses.js")
    for (address, campaign), found in zip(vectors, by_client, strict=True):
        values = campaign_of(None, {"url": address})
        by_daemon = {name: value for name, value in zip(CAMPAIGN_FIELDS, values, strict=True) if value is not None}
        assert by_daemon == (campaign or {}), address
        assert {name: value for name, value in (found or {}).items() if name in CAMPAIGN_FIELDS} == by_daemon, address


WITHOUT_SECRETS: list[tuple[str, str | None]] = [
    ("https://shop.example/", None),
    ("https://shop.example/a?page=2&sort=price&empty=&q=token#top", "https://shop.example/a?page=2&sort=price&empty=&q=token"),
    ("https://shop.example/?token=t", "https://shop.example/"),
    ("https://shop.example/?token=t&page=2", "https://shop.example/?page=2"),
    ("https://shop.example/?page=2&token=t", "https://shop.example/?page=2"),
    ("https://shop.example/?a=1&reset_token=t&b=2", "https://shop.example/?a=1&b=2"),
    ("https://shop.example/?resetToken=t&ACCESS-TOKEN=t&accesstoken=t&id_token=t&tokens[]=t", "https://shop.example/"),
    ("https://shop.example/?apikey=k&PHPSESSID=s&userpasswd=p&a=1", "https://shop.example/?a=1"),
    ("https://shop.example/?code=c&state=s", "https://shop.example/?state=s"),
    ("https://shop.example/?%74oken=t&api%5Fkey=k", "https://shop.example/"),
    ("https://shop.example/?email=a&e-mail=a&user[email]=a&customerEmail=a", "https://shop.example/"),
    ("https://shop.example/?q=ann%40shop.example&who=ann@shop.example", "https://shop.example/"),
    ("https://shop.example/?ann@shop.example", "https://shop.example/"),
    ("https://shop.example/ann%2540shop.example?who=ann%252540shop.example", "https://shop.example/"),
    ("https://shop.example/unsubscribe/ann@shop.example/now?a=1", "https://shop.example/unsubscribe//now?a=1"),
    ("https://ann:secret@shop.example/?a=1", "https://shop.example/?a=1"),
    ("https://shop.example/a;jsessionid=1F?a=1", "https://shop.example/a?a=1"),
    ("https://shop.example/a;v=1?token=t&b=2;c=3", "https://shop.example/a;v=1?b=2;c=3"),
    ("https://shop.example/a;sid=1/b;v=1/token=t/c&key=k?d=1", "https://shop.example/a/b;v=1//c?d=1"),
    ("https://shop.example/?token=a/b?c&d=/e;f", "https://shop.example/?d=/e;f"),
    ("https://shop.example/?a=1?token=t&b=2", "https://shop.example/?b=2"),
    ("https://shop.example/?next=https%3A%2F%2Fshop.example%2Fcb%3Ftoken%3Dt&a=1", "https://shop.example/?a=1"),
    ("https://shop.example/?next=https%253A%252F%252Fshop.example%252F%253Fcode%253Dt", "https://shop.example/"),
    ("https://shop.example/?next=/cart?page=2", None),
    ("https://shop.example/?keyword=a&monkey=b&author=c&passage=d&token", None),
    ("https://shop.example/?utm_source=search&utm_term=key&gclid=x&ScCid=y", None),
    ("https://shop.example/#access_token=t", "https://shop.example/"),
    ("https://shop.example/@ann/p%40x?a=b%", None),
    ("", None),
]  # fmt: skip


def test_no_secret_of_an_address_leaves_the_page() -> None:
    addresses = json.dumps([address for address, _ in WITHOUT_SECRETS])
    found = source(f"{addresses}.map((each) => client.withoutSecrets(each, client.SECRETS.split(' ')))", "addresses.js")
    assert found == [address if rest is None else rest for address, rest in WITHOUT_SECRETS]


def test_no_secret_of_a_campaign_leaves_the_page() -> None:
    address = "https://shop.example/?utm_source=newsletter&utm_content=ann%40shop.example&utm_id=ann%2540shop.example"
    address += "&utm_token=t&utm_phone=1&utm_term=/?code=c&utm_name=n"
    found = source(f"client.campaignOf('{address}', client.SECRETS.split(' '))", "addresses.js")
    assert found == {"source": "newsletter", "name": "n"}
