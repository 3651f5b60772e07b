"""An option under the name that Spark has for it is refused, and the refusal says what stands for it here."""

import pytest
from pyspark.sql import SparkSession

from spark_ext.errors import ConfigurationError
from spark_ext.sources.files.options import FilesOptions
from spark_ext.spark.session import formats
from spark_ext.spark.session.connector import Connector

KINDS = {one.name(): one.options_type for one in formats.load() if issubclass(one, Connector)}
NAMES = [(format_, name) for format_, kind in KINDS.items() for name in sorted(kind.foreign_names)]


@pytest.mark.parametrize(("format_", "name"), NAMES, ids=[" ".join(one) for one in NAMES])
def test_each_name_leads_to_an_option_or_says_what_to_do(format_: str, name: str) -> None:
    kind = KINDS[format_]
    assert name not in kind.model_fields and name == name.lower()
    with pytest.raises(ConfigurationError, match=f"unknown option '{name}'") as refused:
        kind.parse(format_, {"uid": "u", "path": "p", name: "x"})
    instead = kind.foreign_names[name]
    if " " in instead:
        assert refused.value.do == instead and "did you mean" not in refused.value.what
    else:
        assert instead in kind.model_fields and refused.value.what.endswith(f"; did you mean '{instead}'?")


def test_names_are_compared_in_any_case() -> None:
    for name, hint in {"maxFilesPerTrigger": "max_rows_per_epoch", "sepp": "'sep'", "inferSchema": ".schema("}.items():
        with pytest.raises(ConfigurationError) as refused:
            FilesOptions.parse("files", {"uid": "u", "path": "p", name: "1"})
        assert hint in str(refused.value)


def test_each_option_of_sparks_sources_of_files_is_known(spark: SparkSession) -> None:
    """Those that work here under their own name, and those of `foreign_names`."""
    java = spark._jvm
    assert java is not None
    catalyst, execution = "org.apache.spark.sql.catalyst", "org.apache.spark.sql.execution.datasources"
    kinds = [
        f"{catalyst}.csv.CSVOptions", f"{catalyst}.json.JSONOptions", f"{catalyst}.FileSourceOptions",
        f"{execution}.parquet.ParquetOptions", f"{execution}.orc.OrcOptions",
    ]  # fmt: skip
    found = set()
    for kind in kinds:
        options = java.java.lang.Class.forName(f"{kind}$").getField("MODULE$").get(None)
        if "getAllOptions" in dir(options):
            names = options.getAllOptions().iterator()
            while names.hasNext():
                found.add(names.next().lower())
    assert {"delimiter", "nullvalue", "mergeschema", "linesep"} <= found
    unknown = found - FilesOptions.model_fields.keys() - FilesOptions.foreign_names.keys()
    assert not unknown
