"""What differs between two definitions of a query."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from spark_ext.model.changes import Change, ChangeKind, compare
from spark_ext.model.definitions import OperatorDefinition, QueryDefinition, Role

texts = st.sampled_from(["a", "b", "c", "d"])
options = st.dictionaries(texts, texts, max_size=3)


@st.composite
def definitions(draw: st.DrawFn) -> QueryDefinition:
    uids = draw(st.lists(st.sampled_from(["s", "t", "u"]), unique=True, max_size=3))
    operators = [OperatorDefinition(uid, Role.SOURCE, draw(texts), draw(options), draw(options)) for uid in uids]
    if draw(st.booleans()):
        operators.append(OperatorDefinition("end", Role.END, "end_of_input"))
    if draw(st.booleans()):
        operators.append(OperatorDefinition(draw(st.sampled_from(["x", "y"])), Role.SINK, draw(texts), draw(options)))
    columns = draw(st.lists(st.tuples(texts, st.sampled_from(["bigint", "string"])), unique_by=lambda it: it[0]))
    natives = draw(st.lists(texts, max_size=2))
    state = draw(st.none() | st.lists(texts, max_size=2).map(tuple))
    reads = draw(st.lists(st.tuples(texts, texts), max_size=2).map(tuple))
    return QueryDefinition(tuple(operators), tuple(natives), draw(texts), tuple(columns), state, reads)


@given(definitions())
def test_what_is_stored_and_read_again_has_not_changed(one: QueryDefinition) -> None:
    assert QueryDefinition.from_json(one.to_json()) == one
    assert compare("q", one, one) == ()


@given(definitions(), definitions())
def test_a_change_and_the_way_back_name_the_same(one: QueryDefinition, two: QueryDefinition) -> None:
    there, back = compare("q", one, two), compare("q", two, one)
    assert len(there) == len(back)
    turned = {ChangeKind.ADDED: ChangeKind.REMOVED, ChangeKind.REMOVED: ChangeKind.ADDED}
    found = {(turned.get(it.kind, it.kind), it.after, it.before) for it in there}
    assert found == {(it.kind, it.before, it.after) for it in back}
    assert all(str(it) and it.key for it in there)


@given(definitions(), definitions())
def test_without_a_breaking_change_each_operator_is_where_it_was(one: QueryDefinition, two: QueryDefinition) -> None:
    if any(it.breaking for it in compare("q", one, two)):
        return

    def read(by: QueryDefinition) -> list[object]:
        return [(it.uid, it.format, it.identity) for role in (Role.SOURCE, Role.END) for it in by.of(role)]

    assert (read(one), one.natives) == (read(two), two.natives)
    sinks = [[it.uid for it in by.of(Role.SINK)] for by in (one, two)]
    assert sinks[0] == sinks[1] or one.sink_format == two.sink_format


def query(*operators: OperatorDefinition) -> QueryDefinition:
    return QueryDefinition(operators)


SOURCE = OperatorDefinition("s", Role.SOURCE, "files", {"path": "/a"}, {"path": "a", "readers": "1", "pattern": "*"})
SINK = OperatorDefinition("x", Role.SINK, "delta_2pc", {"path": "/out"}, {"path": "out"})


def changed(before: OperatorDefinition, after: OperatorDefinition) -> tuple[Change, ...]:
    return compare("q", query(before), query(after))


def test_what_can_be_accepted() -> None:
    (path,) = changed(SOURCE, replace(SOURCE, identity={"path": "/b"}))
    assert (path.key, path.before, path.after, path.breaking, path.acceptable) == ("s.path", "/a", "/b", True, True)
    (kind,) = changed(SOURCE, replace(SOURCE, format="datagen"))
    assert kind.breaking and not kind.acceptable, "positions of one format mean nothing to another"
    (kind,) = changed(SINK, replace(SINK, format="files_2pc"))
    assert (kind.key, kind.acceptable) == ("x.format", True)
    (uid,) = changed(SINK, replace(SINK, uid="y"))
    assert (uid.key, uid.acceptable) == ("x.uid", True)


def test_a_change_in_how_or_what_else_a_source_reads_is_harmless() -> None:
    assert changed(SOURCE, replace(SOURCE, options={**SOURCE.options, "readers": "3"})) == ()
    (pattern,) = changed(SOURCE, replace(SOURCE, options={**SOURCE.options, "pattern": "*.csv"}))
    assert not pattern.breaking
    assert str(pattern) == "option 'pattern' of source 's' was '*', and is '*.csv'"
    assert changed(SINK, replace(SINK, options={"compression": "zstd"})) == ()


def test_a_stage_may_be_added_and_not_be_another_one() -> None:
    staged = replace(SOURCE, identity={"old.path": "/a"})
    assert changed(staged, replace(staged, identity={"old.path": "/a", "new.path": "/b"})) == ()
    (path,) = changed(staged, replace(staged, identity={"old.path": "/c"}))
    assert path.key == "s.old.path"


def test_state_that_was_made_otherwise() -> None:
    def of(*state: str) -> QueryDefinition:
        return QueryDefinition((), state=state)

    (one,) = compare("q", of("dedupe", "max(v) by k"), of("dedupe", "min(v) by k"))
    assert str(one) == "the state was made by max(v) by k, and the query has min(v) by k now"
    assert (one.key, one.breaking, one.acceptable) == ("q.state", True, True)
    (one,) = compare("q", of("dedupe", "max(v) by k"), of())
    assert (one.before, one.after) == ("dedupe; max(v) by k", "")
    assert compare("q", of("dedupe"), replace(of(), state=None)) == (), "not known"


def test_an_inferred_column_is_added_and_nothing_else_of_them_changes() -> None:
    """Without the option, what another job has added to the same file is refused as well; a stage may still come."""

    def breaking(before: dict[str, str], after: dict[str, str], **given: str) -> list[str]:
        one, other = (
            QueryDefinition((OperatorDefinition("s", Role.SOURCE, "files", reads, given),)) for reads in (before, after)
        )
        return [change.key for change in compare("q", one, other) if change.breaking]

    kept = {"schema": "`n` bigint", "schema.m": "string"}
    more, other = {**kept, "schema.k": "date"}, {**kept, "schema.m": "date"}
    assert breaking(kept, more, schema_evolution="add_columns") == []
    assert breaking(kept, more) == ["s.schema.k"]
    for changed in (other, {"schema": "`n` bigint"}):
        assert breaking(kept, changed, schema_evolution="add_columns") == ["s.schema.m"]
    assert breaking(kept, {**kept, "1.path": "x", "1.schema": ""}) == []
    assert breaking({"1.path": "x"}, {"1.path": "x", "1.schema.m": "date"}) == ["s.1.schema.m"]
