"""The registry of formats, and what a class becomes on its way to Spark; without Spark's JVM."""

import pickle
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

from spark_ext.errors import ConfigurationError
from spark_ext.queries import operators
from spark_ext.sinks.contract import Claim, CommitOutcome, Epoch, Task, TwoPhaseCommitSink
from spark_ext.sinks.runtime.writer import ArrowWriter, SinkAdapter
from spark_ext.sources.contract import ChannelSource
from spark_ext.sources.datagen import DataGen
from spark_ext.sources.hybrid.source import Hybrid
from spark_ext.sources.runtime.adapter import SourceAdapter
from spark_ext.spark.session import formats

SCHEMA = StructType().add("id", "long")


class Renamed(DataGen):
    @classmethod
    def name(cls) -> str:
        return "Renamed"


class Forgotten(DataGen):
    """Defined, and never registered."""

    @classmethod
    def name(cls) -> str:
        return "forgotten"


class Nowhere(TwoPhaseCommitSink):
    @classmethod
    def name(cls) -> str:
        return "nowhere_2pc"

    def write(self, schema: StructType, batches: Iterator[Any], task: Task) -> Any:
        return None

    def commit(self, schema: StructType, epoch: Epoch, prepared: Sequence[Any]) -> CommitOutcome:
        return CommitOutcome.COMMITTED

    def claim(self, claim: Claim) -> None:
        pass


@pytest.fixture(autouse=True)
def _a_registry_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "_registered", {})


@pytest.mark.parametrize(("name", "place"), formats.SHIPPED.items())
def test_a_shipped_class_is_found_under_its_own_name(name: str, place: str) -> None:
    found = formats.find(name)
    assert found is not None
    assert (found.name(), f"{found.__module__}:{found.__qualname__}") == (name, place)


def test_only_the_shipped_class_asked_for_is_imported() -> None:
    code = """
        import sys
        from spark_ext.spark.session import formats
        formats.find("files")
        print(sorted(name for name in sys.modules if name.startswith(("spark_ext.sources.", "spark_ext.sinks."))
                     and name.count(".") == 2 and name.rpartition(".")[2] not in
                     ("contract", "positions", "runtime", "sift", "splitmix", "staged")))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert done.stdout == "['spark_ext.sources.files']\n"


def test_the_class_registered_last_wins_also_over_one_that_ships() -> None:
    class Other(Renamed):
        pass

    class Mine(DataGen):
        pass

    for kind in (Renamed, Other):
        formats.add(kind)
        assert formats.find("renamed") is kind
        assert type(operators.source("renamed", {"uid": "a"})) is kind
    assert formats.find("datagen") is DataGen
    formats.add(Mine)
    assert formats.find("DataGen") is Mine
    assert formats.known()["datagen"] is Mine


def test_a_class_never_registered_is_named_with_advice() -> None:
    with pytest.raises(ConfigurationError, match=r"Forgotten has the format name 'forgotten' and is not") as refused:
        operators.is_source("forgotten")
    assert refused.value.do == "call spark_ext.register(spark, Forgotten) before the query is defined"
    with pytest.raises(ConfigurationError, match="Nowhere has the format name 'nowhere_2pc' and is not registered"):
        operators.sink("nowhere_2pc", {"uid": "a"})
    with pytest.raises(ConfigurationError, match="Forgotten has the format name 'forgotten' and is not") as refused:
        Hybrid({"uid": "a", "stages": "a", "a.format": "forgotten"})
    assert f"name it as {__name__}:Forgotten" in refused.value.do


def test_what_nobody_has_defined_is_none_of_ours() -> None:
    assert not operators.is_source("rate") and not operators.is_sink("console")
    assert not operators.is_source("nowhere_2pc") and not operators.is_source("end_of_input")
    with pytest.raises(ConfigurationError, match="no source with the format name 'rate' is registered"):
        operators.source("rate", {})


def test_a_class_that_lacks_methods_of_its_contract_is_refused() -> None:
    class Half(ChannelSource):
        @classmethod
        def name(cls) -> str:
            return "half"

        def schema(self) -> str:
            return "n int"

    with pytest.raises(ConfigurationError, match="does not implement advance, discover, read"):
        formats.add(Half)
    assert formats.find("half") is None


def sent(value: Any) -> Any:
    """As Spark's own serializer sends it."""
    return pickle.loads(cloudpickle.dumps(value))


def test_a_source_becomes_a_data_source_of_spark() -> None:
    adapter = sent(formats.data_source(DataGen))
    assert issubclass(adapter, DataSource) and adapter.name() == "datagen"
    made = sent(adapter(options={"uid": "a", "rows": "5"}))
    assert isinstance(made, DataSource) and made.name() == "datagen"
    assert made.schema() == DataGen({"uid": "a"}).schema()
    assert isinstance(sent(made.streamReader(schema=SCHEMA)), DataSourceStreamReader)
    assert isinstance(made, SourceAdapter) and type(made.source) is DataGen
    assert made.source.options.rows == 5 and made.source.declared == SCHEMA


def test_a_sink_becomes_a_data_source_of_spark() -> None:
    adapter = sent(formats.data_source(Nowhere))
    assert issubclass(adapter, DataSource) and adapter.name() == "nowhere_2pc"
    made = sent(adapter(options={"uid": "a", "commit_attempts": "3"}))
    assert isinstance(made, DataSource) and made.name() == "nowhere_2pc"
    assert isinstance(sent(made.streamWriter(schema=SCHEMA, overwrite=False)), ArrowWriter)
    assert isinstance(made, SinkAdapter) and type(made.sink) is Nowhere and made.sink.options.commit_attempts == 3


def test_a_data_source_of_spark_stays_and_all_else_is_refused() -> None:
    class Plain(DataSource):
        pass

    assert formats.data_source(Plain) is Plain
    with pytest.raises(ConfigurationError, match="the class dict is neither a source nor a sink"):
        formats.data_source(dict)


@pytest.mark.parametrize("kind", formats.load(), ids=lambda kind: str(kind.name()))
def test_a_shipped_class_is_sent_by_reference(kind: type[Any]) -> None:
    """Neither its code nor that of its adapter's base travels."""
    whole = cloudpickle.dumps(formats.data_source(kind))
    assert kind.__module__.encode() in whole
    assert len(whole) < 2_000
    for code in (b"co_consts", b"_builtin_type", b"CodeType", b"_make_function"):
        assert code not in whole


def test_an_instance_is_sent_without_its_adapters_class() -> None:
    assert b"_make_skeleton_class" not in cloudpickle.dumps(formats.data_source(DataGen)({"uid": "a"}))
    assert b"_make_skeleton_class" in cloudpickle.dumps(formats.data_source(DataGen))


def test_a_class_of_main_is_sent_by_value_and_works_elsewhere() -> None:
    """As from a notebook: the process that receives it has never seen the code."""
    sender = """
        import sys
        from pyspark import cloudpickle
        from spark_ext.sources.datagen import DataGen
        from spark_ext.spark.session import formats

        class FromMain(DataGen):
            @classmethod
            def name(cls):
                return "from_main"

            def schema(self):
                return "hello int"

        adapter = formats.data_source(FromMain)
        sys.stdout.buffer.write(cloudpickle.dumps([adapter, adapter({"uid": "a"})]))
    """
    receiver = """
        import pickle, sys
        adapter, made = pickle.load(sys.stdin.buffer)
        print(adapter.name(), adapter({"uid": "b"}).schema(), made.name(), made.schema(), made.source.options.uid)
    """
    first = subprocess.run([sys.executable, "-c", textwrap.dedent(sender)], capture_output=True, check=True)
    second = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(receiver)], input=first.stdout, capture_output=True, check=True
    )
    assert second.stdout.decode() == "from_main hello int from_main hello int a\n"


@pytest.mark.parametrize("kind", [Renamed, Nowhere])
def test_a_class_given_to_spark_itself_is_refused_with_advice(kind: type[Any]) -> None:
    """By what Spark does with it: it checks the class, makes an instance and asks it for a reader or writer."""
    assert issubclass(kind, DataSource)
    made = sent(sent(kind)(options={"uid": "a"}))
    assert isinstance(made, DataSource)
    for ask in (lambda: made.streamReader(schema=SCHEMA), lambda: made.streamWriter(schema=SCHEMA, overwrite=False)):
        with pytest.raises(ConfigurationError, match=f"the class {kind.__name__} was registered with spark.d") as bad:
            ask()
        assert bad.value.do == f"register it with spark_ext.register(spark, {kind.__name__})"
