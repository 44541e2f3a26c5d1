"""The page may stay open on a screen, so show no personal data. Accept only values of `selection` that are among the
options of the panel's `filters`. A panel adds up the data of all `store.parts`.
"""

from collections import Counter

from ingestd.api import hookimpl
from ingestd.api.panels import Column, Panel, Table
from ingestd.api.store import Store

searches: Counter[str] = Counter()
"""Of this run, by tenant."""


@hookimpl
def show_panel(store: Store) -> Panel | None:
    if not searches:
        return None
    columns = [Column("Shop"), Column("Searches", digits=0, bar=True)]
    return Panel("Searches", [Table("By shop", columns, searches.most_common(10))], note="Since the start.")
