"""One query through PyFlink's tables, run by a Python of its own: `pyflink_query.py CONF_FOLDER SCRIPT TABLE`."""

import sys
from pathlib import Path

from pyflink.common import Configuration
from pyflink.table import DataTypes, EnvironmentSettings, TableDescriptor, TableEnvironment
from pyflink.table.udf import udf

conf, script, table = sys.argv[1:]
settings = Configuration()
for line in (Path(conf) / "config.yaml").read_text().splitlines():
    settings.set_string(*line.split(": ", 1))
tables = TableEnvironment.create(
    EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(settings).build()
)
tables.create_temporary_function("same", udf(lambda value: value, result_type=DataTypes.BIGINT()))
*statements, query = Path(script).read_text().split(";\n")
for statement in statements:
    tables.execute_sql(statement)
sink = TableDescriptor.for_connector("nexmark").option("path", table).build()
tables.sql_query(query).execute_insert(sink).wait()
