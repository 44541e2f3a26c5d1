"""Return moments for the time line, facts, tables and notes.

The page hides ids and free texts of callers unless `[ops] show_data` (docs/operators-page.md) is `"all"`. So an id of a
caller belongs in `visitor`, or in a `JourneyFact` with `names`. Free text belongs in `detail`. All other texts are
always shown.
"""

from ingestd.api import hookimpl
from ingestd.api.journeys import JourneyExplanation, JourneyFact, JourneyPart, JourneyRecords


@hookimpl
def explain_journey(found: JourneyRecords) -> JourneyPart | None:
    searches = sum(b'"Products Searched"' in record.body for record in found.records)
    if not searches:
        return None
    facts = [JourneyFact("Searches", str(searches)), JourneyFact("By the user", found.query.user, names="user")]
    return JourneyPart(explanations=[JourneyExplanation("Searches", facts)])
