"""SDKs as parameters: `sdk` is each one for servers, `package` each one's package. analytics-go needs Go."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.support.sdk_pages import BROWSER_SDKS
from tests.support.sdks import SERVER_SDKS, ServerSdk, Start, sdk_programs

_NO_GO = pytest.mark.skipif(shutil.which("go") is None, reason="Go is not installed, so analytics-go is not tested")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    servers = [pytest.param(sdk, marks=_NO_GO if sdk.language == "go" else (), id=sdk.package) for sdk in SERVER_SDKS]
    if "sdk" in metafunc.fixturenames:
        metafunc.parametrize("sdk", servers)
    if "package" in metafunc.fixturenames:
        packages = [pytest.param(each.id, marks=each.marks, id=each.id) for each in servers]
        metafunc.parametrize("package", [*packages, *BROWSER_SDKS])


@pytest.fixture(scope="module")
def server_sdks() -> list[ServerSdk]:
    """The SDKs that this machine can run."""
    return [sdk for sdk in SERVER_SDKS if sdk.language != "go" or shutil.which("go") is not None]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts programs that end with the tests of the module."""
    with sdk_programs(tmp_path_factory.mktemp) as start:
        yield start
