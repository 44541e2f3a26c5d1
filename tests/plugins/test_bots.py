"""The plugin `bots`: the user agents of crawlers, and the handling of their events."""

from __future__ import annotations

import string
import sys
from importlib import import_module
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.api.errors import ConfigError
from ingestd.plugins.bots import BotsPlugin, CrawlerList

LIST: Any = import_module("crawleruseragents")  # it has no types
CHROME = (
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/131.0.0.0 Safari/537.36"
)
PEOPLE = [
    CHROME,
    "Mozilla/5.0 (iPhone; CPU iPhone OS 17_6_1 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/17.6"
    " Mobile/15E148 Safari/604.1",
    "Mozilla/5.0 (X11; Linux x86_64; rv:132.0) Gecko/20100101 Firefox/132.0",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 17_5 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Mobile/15E148"
    " [FBAN/FBIOS;FBAV/480.0.0.30.109;FBBV/623560389;FBDV/iPhone14,5;FBMD/iPhone;FBSN/iOS;FBSV/17.5;FBSS/3;FBLC/de_DE]",
    "Mozilla/5.0 (Linux; Android 13; SM-S911B Build/TP1A; wv) AppleWebKit/537.36 (KHTML, like Gecko) Version/4.0"
    " Chrome/130.0.6723.107 Mobile Safari/537.36 Instagram 356.0.0.41.101 Android",
    "Mozilla/5.0 (Linux; Android 10; CUBOT X30) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/120.0.0.0 Mobile",
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko)"
    " Version/17.1 Pinterest/0.1",
    "ShopApp/3.1 (iPhone; iOS 17.0) CFNetwork/1474 Darwin/23.0.0",
    "Dalvik/2.1.0 (Linux; U; Android 14; Pixel 8 Build/UD1A)",
    "okhttp/4.12.0",
    "",
]
CRAWLERS = {
    "Mozilla/5.0 (Linux; Android 6.0.1; Nexus 5X Build/MMB29P) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/131.0.0.0"
    " Mobile Safari/537.36 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)": "Googlebot",
    "Mozilla/5.0 (compatible; bingbot/2.0; +http://www.bing.com/bingbot.htm)": "bingbot",
    "Mozilla/5.0 AppleWebKit/537.36 (KHTML, like Gecko; compatible; GPTBot/1.2; +https://openai.com/gptbot)": "GPTBot",
    "facebookexternalhit/1.1 (+http://www.facebook.com/externalhit_uatext.php)": "facebookexternalhit",
    "Mozilla/5.0 (compatible; UptimeRobot/2.0; http://www.uptimerobot.com/)": "UptimeRobot",
    "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) HeadlessChrome/131.0.0.0 Safari/537.36":
        "HeadlessChrome",
    "curl/8.5.0": "curl",
    "Wget/1.21.4": "Wget",
    "python-requests/2.32.3": "python-requests",
}  # fmt: skip


@pytest.fixture(scope="module")
def crawlers() -> CrawlerList:
    return CrawlerList(allow=BotsPlugin.Options().allow, deny=())


@pytest.mark.parametrize("user_agent", PEOPLE)
def test_browsers_and_apps_are_no_crawlers(crawlers: CrawlerList, user_agent: str) -> None:
    assert crawlers.find_name(user_agent) is None


@pytest.mark.parametrize(("user_agent", "name"), CRAWLERS.items())
def test_crawlers_are_recognised_by_name(crawlers: CrawlerList, user_agent: str, name: str) -> None:
    assert crawlers.find_name(user_agent) == name


def test_every_crawler_of_the_list_is_recognised(crawlers: CrawlerList) -> None:
    known = [agent for entry in LIST.CRAWLER_USER_AGENTS_DATA for agent in entry["instances"] if "okhttp/" not in agent]
    assert len(known) > 1000
    assert [agent for agent in known if not crawlers.find_name(agent)] == []


PARTS = [entry["pattern"].replace("\\", "") for entry in LIST.CRAWLER_USER_AGENTS_DATA[::40]]


@given(st.lists(st.sampled_from(PARTS) | st.text(string.printable) | st.text(), max_size=12).map("".join))
def test_any_user_agent_is_judged_as_the_list_judges_it(crawlers: CrawlerList, user_agent: str) -> None:
    user_agent = user_agent.encode(errors="replace").decode("latin-1")  # as a header comes
    found = CrawlerList((), ()).find_name(user_agent) if "okhttp/" in user_agent else crawlers.find_name(user_agent)
    assert (found is not None) == LIST.is_crawler(user_agent[:256])


def test_texts_to_allow_come_before_those_to_deny_and_both_before_the_list() -> None:
    crawlers = CrawlerList(allow=("curl/8", "Shop/2"), deny=("Shop/", "Firefox/"))
    assert crawlers.find_name("curl/8.5.0") is None
    assert crawlers.find_name("curl/7.88.1") == "curl"
    assert crawlers.find_name("Shop/2.0") is None
    assert crawlers.find_name("Shop/1.0") == "Shop/"
    assert crawlers.find_name(PEOPLE[2]) == "Firefox/"


def test_without_an_action_there_is_no_hook_and_with_one_its_packages_are_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not hasattr(BotsPlugin(BotsPlugin.Options()), "prepare")
    assert hasattr(BotsPlugin(BotsPlugin.Options(action="drop")), "prepare")
    for module in ("re2", "crawleruseragents"):
        monkeypatch.setitem(sys.modules, module, None)
    BotsPlugin(BotsPlugin.Options())
    with pytest.raises(
        ConfigError, match=r"plugins\.bots\.action: needs crawler-user-agents and google-re2, .*\[bots\]"
    ):
        BotsPlugin(BotsPlugin.Options(action="mark"))
