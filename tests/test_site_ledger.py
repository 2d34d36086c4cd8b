"""The ledger on the site holds every claim of the results, and its states are theirs."""

import re
from collections import Counter

import _site_claims
from _lesson import lessons

from circuitbook import paths, results


def test_the_course_ledger_equals_the_results():
    course = lessons(paths.SCRIPTS)
    shelf = _site_claims.shelf(course, paths.ROOT)
    shelf.measured = {x.name: (1, "The measurement") for x in course}
    text = _site_claims.ledger(course, shelf)
    rows = re.findall(
        r'<tr role="row" id="([^"]+)" data-label="([^"]+)" data-holds="([^"]+)">', text
    )
    saved = [
        c
        for path in sorted((paths.RESULTS / "course").glob("*.json"))
        for c in results.read(path)["claims"]
    ]
    assert Counter(rows) == Counter(
        (c["id"], c["label"], _site_claims.STATES[c["holds"]]) for c in saved
    )
    assert len(rows) == len({r[0] for r in rows}) == len(saved) > 100
    for c in saved:
        assert _site_claims.words(c["sentence"]) in text
