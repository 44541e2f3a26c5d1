"""The iceberg sink in Azure, by its emulator Azurite: all its work, and each way in which Azure refuses it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyarrow.fs import FileSelector

from ingestd.api.errors import SinkRetry
from ingestd.plugins.sinks.iceberg import IcebergSink
from ingestd.testing.writes import span_of
from tests.support.azurite import Azurite, azurite
from tests.support.clients import wait_until
from tests.support.daemon import Shop, run_ingestd
from tests.support.sinks import configured

from .test_iceberg import of_every_table, rows_in, store, written_and_kept

pytestmark = pytest.mark.long

PATIENCE = 120.0
"""To import the libraries takes seconds of CPU time, in each command."""
WRONG = b64encode(b"a-wrong-secret").decode()


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    with azurite(tmp_path_factory.mktemp("azure")) as server:
        yield server


def catalogue(azure: Azurite, folder: Path, **credentials: str) -> dict[str, str]:
    """With the account's key, unless there are other credentials. Each test has tables of its own."""
    keys = {key: text for key, text in azure.storage.items() if key != "account_key"}
    keys |= credentials or {"account_key": azure.storage["account_key"]}
    properties = {f"adls.{key.replace('_', '-')}": text for key, text in keys.items()}
    return {"uri": f"sqlite:///{folder}/lake.db", "warehouse": f"abfss://shop/{folder.name}", **properties}


def lake(catalog: dict[str, str], folder: Path) -> IcebergSink:
    return configured(IcebergSink, "lake", {"catalog": catalog}, folder)


@pytest.mark.parametrize("scheme", ["abfs", "abfss", "wasb", "wasbs"])
async def test_tables_in_azure(azure: Azurite, tmp_path: Path, scheme: str) -> None:
    await written_and_kept({**catalogue(azure, tmp_path), "warehouse": f"{scheme}://shop/{tmp_path.name}"}, tmp_path)


def test_clickhouse_reads_a_warehouse_with_the_address_that_spark_needs(azure: Azurite, tmp_path: Path) -> None:
    catalog = catalogue(azure, tmp_path)
    account = catalog.pop("adls.account-name")
    catalog["warehouse"] = f"abfss://shop@{account}.dfs.core.windows.net/{tmp_path.name}"
    asyncio.run(written_and_kept(catalog, tmp_path))
    found = azure.files().get_file_info(FileSelector(f"shop/{tmp_path.name}/ingestd/events/metadata"))
    assert found
    access = "".join(
        f"{name}={value};"
        for name, value in (
            ("DefaultEndpointsProtocol", "http"),
            ("AccountName", account),
            ("AccountKey", azure.storage["account_key"]),
            ("BlobEndpoint", f"http://{azure.storage['blob_storage_authority']}/{account}"),
        )
    )
    query = f"SELECT type FROM icebergAzure('{access}', 'shop', '{tmp_path.name}/ingestd/attributions') ORDER BY type"
    program = f"import chdb; print(chdb.query({query!r}))"
    read = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert read.stdout.split() == ['"attribution"', '"attribution_reversal"']


@pytest.mark.parametrize("mark", ["", "?"])
async def test_a_token_for_a_time_is_enough(azure: Azurite, tmp_path: Path, mark: str) -> None:
    await written_and_kept(catalogue(azure, tmp_path, sas_token=mark + azure.token()), tmp_path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"account_key": WRONG},
        {"account_key": "a-wrong-secret"},
        {"sas_token": f"sv=2021-12-02&ss=b&srt=sco&sp=rwdlac&se=2036-01-01T00%3A00%3A00Z&sig={WRONG}"},
        {"sas_token": f"sv=2021-12-02&sig={WRONG.replace('=', '%3d')}&ss=b&srt=sco&sp=rl&se=2036-01-01"},
        {"tenant_id": "a-tenant", "client_id": "a-client", "client_secret": WRONG},
    ],
    ids=["key", "no key", "token", "token in another order", "client"],
)
async def test_wrong_credentials_end_no_process_and_are_in_no_message(
    azure: Azurite, tmp_path: Path, wrong: dict[str, str]
) -> None:
    good = lake(catalogue(azure, tmp_path), tmp_path)
    await good.open()
    await good.close()
    catalog = catalogue(azure, tmp_path, **wrong)
    listed = ", ".join(f'"{key}" = "{text}"' for key, text in catalog.items())
    shop = Shop(tmp_path, {"sinks.tables": f'type = "iceberg"\ncatalog = {{ {listed} }}'})
    told = run_ingestd("check", config=shop.config, timeout=PATIENCE)
    assert told.returncode == os.EX_TEMPFAIL, told
    assert "tables" in told.stdout + told.stderr
    assert all(text not in told.stdout + told.stderr for text in (WRONG, WRONG.rstrip("="), "a-wrong-secret"))


async def test_a_missing_container_is_named(azure: Azurite, tmp_path: Path) -> None:
    sink = lake({**catalogue(azure, tmp_path), "warehouse": "abfss://missing/tables"}, tmp_path)
    with pytest.raises(SinkRetry, match="ContainerNotFound"):
        await sink.open()
    await sink.close()


async def test_a_flush_waits_for_azure(tmp_path: Path) -> None:
    with azurite(tmp_path / "azure") as server:
        sink = lake(catalogue(server, tmp_path), tmp_path)
        await sink.open()
        first, second = of_every_table(range(1, 11)), of_every_table(range(11, 21))
        await store(sink, first)
        await sink.write(second)
        server.stop()
        with pytest.raises(SinkRetry, match="Could not connect"):
            await sink.flush(span_of(second))
        server.start()
        await sink.flush(span_of(second))
        await sink.flush(span_of(second))
        assert [row["position"] for row in rows_in(sink)] == [*range(1, 21)]
        await sink.close()


def test_a_person_who_is_forgotten_is_in_no_file_in_azure(azure: Azurite, tmp_path: Path) -> None:
    listed = ", ".join(f'"{key}" = "{text}"' for key, text in catalogue(azure, tmp_path).items())
    options = f'type = "iceberg"\ncatalog = {{ {listed} }}\nflush_every = "200ms"'
    shop = Shop(tmp_path, {"sinks.tables": options})
    with shop.serve() as daemon:
        for visitor, user in (("visitor-1", "u-17"), ("visitor-2", "u-18")):
            event = {"key": "Page View", "anonymousId": visitor, "userId": user, "data": {}}
            assert daemon.post("/track", event, shop.public.id).status == 200
        wait_until(lambda: shop.is_done("sink:tables"), PATIENCE)
        assert "visitor-1" in texts_in(azure, tmp_path)
        shop.command("forget", "--user", "u-17", timeout=PATIENCE)
        wait_until(lambda: shop.is_done("sink:tables"), PATIENCE)
        counts = json.loads(shop.command("lake", "compact", "--json", timeout=PATIENCE))
        assert (counts["erasures"], counts["blanked"] > 0) == (1, True)
    expired = json.loads(shop.command("lake", "expire", "--older-than", "0s", "--json", timeout=PATIENCE))
    assert expired["personsUntil"] is None
    after = texts_in(azure, tmp_path)
    assert [text in after for text in ("visitor-1", "u-17", "visitor-2")] == [False, False, True]


def texts_in(azure: Azurite, folder: Path) -> str:
    """The content of all data files, those that no snapshot has included."""
    files = azure.files()
    found = files.get_file_info(FileSelector(f"shop/{folder.name}", recursive=True))
    paths = [each.path for each in found if each.path.endswith(".parquet")]
    return "".join(str(pq.read_table(path, filesystem=files).to_pylist()) for path in paths)
