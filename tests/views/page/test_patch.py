"""A patch brings one document to the next one."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from spark_ext.server.page_view import difference, keyed
from tests.support.patches import patched

LEAF: st.SearchStrategy[Any] = st.none() | st.integers(0, 3) | st.lists(st.integers(0, 2), max_size=2)
NAMES = st.sampled_from(["a", "b", "c"])


def objects(depth: int) -> st.SearchStrategy[dict[str, Any]]:
    values = LEAF if depth == 0 else LEAF | objects(depth - 1)
    return st.dictionaries(NAMES, values, max_size=3)


@given(objects(4), objects(4))
def test_a_patch_leads_from_one_document_to_the_other(before: dict[str, Any], after: dict[str, Any]) -> None:
    kept = json.dumps(before)
    assert patched(before, json.loads(json.dumps(difference(before, after)))) == after
    assert json.dumps(before) == kept


@given(objects(4))
def test_nothing_changes_between_equal_documents(document: dict[str, Any]) -> None:
    assert difference(document, json.loads(json.dumps(document))) == {"set": [], "gone": []}


def test_a_query_that_has_committed_an_epoch_is_sent_alone() -> None:
    queries = [{"uid": f"q{number}", "epochs": 1} for number in range(3)]
    later = [*queries[:2], {"uid": "q2", "epochs": 2}]
    found = difference(keyed({"queries": queries, "job": {}}), keyed({"queries": later, "job": {}}))
    assert found == {"set": [[["queries", "q2", "epochs"], 2]], "gone": []}
