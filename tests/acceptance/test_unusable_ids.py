"""The option `[ids] unusable` in a daemon: configuration, metrics, log, and attribution."""

from __future__ import annotations

from pathlib import Path

from tests.support.daemon import Shop, run_ingestd
from tests.support.journeys import HOUR, SERVER, TRACK, Sender, attributions, derived


def test_configured_unusable_ids_leave_no_state(tmp_path: Path) -> None:
    shop = Shop(tmp_path, {"ids": 'unusable = ["Nobody", "undefined"]'})
    with shop.serve() as daemon:
        sender = Sender(shop, daemon)
        page = {"key": "Page View", "data": {}, "anonymousId": " NOBODY "}
        sessions = [daemon.post(TRACK, page, shop.public.id).json()["session"] for _ in range(2)]
        assert [session["isNew"] for session in sessions] == [True, True]
        known = [daemon.post(TRACK, page | {"anonymousId": "guest"}, shop.public.id).json()["session"] for _ in "ab"]
        assert [session["isNew"] for session in known] == [True, False]

        sender.touch("undefined", 2 * HOUR, "crowd")
        own = sender.touch("phone", HOUR, "mail")
        sender.link("undefined", "ann")
        sender.link("phone", "ann")
        sender.order("phone", "nobody")
        sender.order("undefined", "o-crowd")
        sender.send(SERVER, "undefined", key="Order Completed", data={"order_id": "o-ann"}, userId="ann")
        sender.send(SERVER, "phone", key="Order Completed", data={"order_id": "o-nobody"}, userId="nobody")
        attributions(shop, ["o-crowd", "o-ann", "o-nobody"])
        credited = [
            (record["orderId"], record["userId"], [each["eventId"] for each in record["touchpoints"]])
            for record in derived(shop)
        ]
        assert credited == [
            (None, "ann", [own]), ("o-crowd", None, []), ("o-ann", "ann", [own]), ("o-nobody", "nobody", [own]),
        ]  # fmt: skip

        counts = {"anonymousId": 6, "userId": 1, "order_id": 1}
        for field, count in counts.items():
            assert daemon.metric(f'ingestd_unusable_ids_total{{field="{field}"}}') == count
        daemon.read_log()
        lines = [line for line in daemon.log if "clients send unusable ids" in line]
        assert len(lines) == len(counts)
        assert not [line for line in lines if "nobody" in line.lower()]
    config = shop.config.read_text()
    shop.config.write_text(f'{config}\n[plugins.identity]\nno_user = ["guest"]\n')
    refused = run_ingestd("serve", config=shop.config)
    assert refused.returncode == 78
    assert "plugins.identity.no_user: unknown option; it is ids.unusable now" in refused.stderr
