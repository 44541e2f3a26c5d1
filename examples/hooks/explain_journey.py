from ingestd.api import hookimpl
from ingestd.api.journeys import JourneyExplanation, JourneyFact, JourneyPart, JourneyRecords


@hookimpl
def explain_journey(found: JourneyRecords) -> JourneyPart | None:
    searches = sum(b'"Products Searched"' in record.body for record in found.records)
    if not searches:
        return None
    facts = [JourneyFact("Searches", str(searches)), JourneyFact("By the user", found.query.user, names="user")]
    return JourneyPart(explanations=[JourneyExplanation("Searches", facts)])
