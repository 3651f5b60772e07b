"""All names that this package uses and that Spark does not document, by what needs them.

`tests/spark/test_private_names.py` looks for each in the installed Spark; `tools.private_names` allows none elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, TypeAlias

# By what needs them, and by module or class, the names in it; "" if it is private itself.
Names: TypeAlias = Mapping[str, Mapping[str, str]]

# Of pyspark, in the driver.
DRIVER: Final[Names] = {
    "kinds of sessions": {"pyspark.core.context": "SparkContext", "pyspark.sql.connect": ""},
    "failures, and sx.control in foreachBatch": {"pyspark.core.context.SparkContext": "_active_spark_context"},
    "what is kept quiet": {"pyspark.accumulators": "UpdateRequestHandler"},
    "settings of spark-submit": {"pyspark.core.context.SparkContext": "_ensure_initialized"},
    "everything": {
        "pyspark.core.context.SparkContext": "_gateway _jsc _jvm",
        "pyspark.sql.session.SparkSession": "_jsparkSession",
    },
    "failures": {"pyspark.errors.exceptions.captured.CapturedException": "_origin _stackTrace"},
    "jars of sessions": {"pyspark.find_spark_home": "_find_spark_home", "pyspark.java_gateway": "launch_gateway"},
    "events of queries": {"pyspark.java_gateway": "ensure_callback_server_started"},
    "plans": {"pyspark.sql.classic.dataframe.DataFrame": "_jdf"},
    "Observer": {
        "pyspark.sql.session.SparkSession": "_instantiatedSession",
        "pyspark.sql.streaming.query.StreamingQueryManager": "_jsqm",
    },
    "rescale": {"pyspark.sql.session.SparkSession": "_streamingCheckpointManager"},
    "Spark Connect": {
        "pyspark.sql.connect.proto": "Plan",
        "pyspark.errors.exceptions.connect.SparkConnectGrpcException": "_grpc_status_code _stacktrace",
        "pyspark.sql.connect.client.core.SparkConnectClient": "_analyze set_retry_policies",
        "pyspark.sql.connect.dataframe.DataFrame": "_plan _session",
        "pyspark.sql.connect.plan.LogicalPlan": "_child plan",
        "pyspark.sql.connect.session.SparkSession": "client is_stopped session_id",
        "pyspark.sql.connect.client.retries.DefaultPolicy": "",
        "pyspark.sql.connect.streaming.readwriter.DataStreamWriter": "_write_proto _write_stream",
    },
    "listeners": {"pyspark.sql.streaming.listener.StreamingQueryListener": "_jlistener _set_spark_session"},
    "queries": {"pyspark.sql.streaming.query.StreamingQuery": "_jsq"},
    "writers": {"pyspark.sql.streaming.readwriter.DataStreamWriter": "_df _jwrite"},
}

# Of pyspark, in sources, sinks, schemas and workers.
WORKERS: Final[Names] = {
    "contract kits": {"pyspark.cloudpickle": "dumps loads"},
    "spark-ext run and register": {"pyspark.cloudpickle": "register_pickle_by_value"},
    "workers": {"pyspark.daemon": ""},
    "async_map": {"pyspark.sql.conversion": "ArrowTableToRowsConversion LocalDataToArrowConversion"},
    "sources and sinks": {"pyspark.sql.pandas.types": "from_arrow_type to_arrow_schema to_arrow_type"},
    "failures": {"pyspark.util": "handle_worker_exception"},
    "parts of epochs": {"pyspark.worker": "read_udfs read_udtf report_times"},
    "stacks of workers": {"pyspark.worker": "setup_broadcasts"},
}

_SQL: Final = "org.apache.spark.sql"
_CATALYST: Final = f"{_SQL}.catalyst"
_LOGICAL: Final = f"{_CATALYST}.plans.logical"
_EXPRESSIONS: Final = f"{_CATALYST}.expressions"
_STREAMING: Final = f"{_SQL}.execution.streaming"
_STATE: Final = f"{_STREAMING}.state"

# Classes of the JVM, with their methods and fields.
JVM: Final[Names] = {
    "plans": {
        f"{_SQL}.classic.Dataset": "queryExecution writeStream",
        f"{_SQL}.execution.QueryExecution": "analyzed",
        f"{_LOGICAL}.LogicalPlan": "children collectLeaves expressions isStreaming nodeName output schema",
        f"{_LOGICAL}.Project": "projectList",
        f"{_EXPRESSIONS}.Alias": "name",
        f"{_CATALYST}.streaming.StreamingRelationV2": "extraOptions sourceName",
        f"{_STREAMING}.runtime.StreamingRelation": "sourceName",
    },
    "watermarks": {f"{_LOGICAL}.EventTimeWatermark": "eventTime", f"{_EXPRESSIONS}.AttributeReference": "name"},
    "state's definition": {
        f"{_LOGICAL}.Aggregate": "aggregateExpressions groupingExpressions",
        f"{_LOGICAL}.CTERelationDef": "child id",
        f"{_LOGICAL}.CTERelationRef": "cteId",
        f"{_LOGICAL}.Deduplicate": "keys",
        f"{_LOGICAL}.DeduplicateWithinWatermark": "child keys",
        f"{_LOGICAL}.Distinct": "child",
        f"{_LOGICAL}.Expand": "projections",
        f"{_LOGICAL}.Filter": "condition",
        f"{_LOGICAL}.FlatMapGroupsInPandasWithState": "groupingAttributes stateType timeout",
        f"{_LOGICAL}.FlatMapGroupsWithState": "groupingAttributes timeout",
        f"{_LOGICAL}.Generate": "generator generatorOutput",
        f"{_LOGICAL}.GlobalLimit": "",
        f"{_LOGICAL}.Join": "condition joinType",
        f"{_LOGICAL}.LateralJoin": "right",
        f"{_LOGICAL}.MapInArrow": "",
        f"{_LOGICAL}.MapInPandas": "",
        f"{_LOGICAL}.TransformWithStateInPySpark": "leftAttributes timeMode",
        f"{_LOGICAL}.Union": "",
        f"{_EXPRESSIONS}.Expression": "collectLeaves dataType sql",
        f"{_EXPRESSIONS}.Alias": "child exprId",
        f"{_EXPRESSIONS}.AttributeReference": "exprId metadata name",
        f"{_EXPRESSIONS}.OuterReference": "e",
        f"{_EXPRESSIONS}.PreciseTimestampConversion": "child",
        f"{_EXPRESSIONS}.aggregate.AggregateExpression": "aggregateFunction",
        f"{_EXPRESSIONS}.aggregate.AnyValue": "ignoreNulls",
        f"{_EXPRESSIONS}.aggregate.First": "ignoreNulls",
        f"{_EXPRESSIONS}.aggregate.HyperLogLogPlusPlus": "relativeSD",
        f"{_EXPRESSIONS}.aggregate.Last": "ignoreNulls",
        f"{_EXPRESSIONS}.aggregate.PivotFirst": "pivotColumnValues",
    },
    "writers": {
        f"{_SQL}.classic.DataStreamWriter": (
            "clusteringColumns extraOptions name outputMode partitioningColumns sinkName source trigger"
        )
    },
    "sessions": {
        f"{_SQL}.classic.SparkSession": (
            "conf getActiveSession sessionState setActiveSession sharedState sparkContext streams"
        ),
        "org.apache.spark.SparkContext": (
            "getExecutorThreadDump getLocalProperties getLocalProperty isStopped listJars "
            "setLocalProperties setLocalProperty statusStore"
        ),
        "org.apache.spark.api.java.JavaSparkContext": "hadoopConfiguration sc",
    },
    "files of checkpoints": {
        f"{_SQL}.internal.SessionState": "newHadoopConf",
        f"{_STREAMING}.runtime.StreamExecution": "commitLog offsetLog",
        f"{_STREAMING}.checkpointing.CommitLog": "metadataPath",
        f"{_STREAMING}.checkpointing.OffsetSeqLog": "metadataPath",
        f"{_STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager": "",
    },
    "queries": {
        f"{_SQL}.classic.StreamingQueryManager": "addListener get listListeners removeListener stateStoreCoordinator",
        f"{_STREAMING}.runtime.StreamingQueryWrapper": "recentProgress streamingQuery",
        f"{_STREAMING}.runtime.StreamExecution": "resolvedCheckpointRoot runId sparkSessionForStream trigger",
    },
    "ends of queries": {
        f"{_STREAMING}.runtime.MicroBatchExecution": "noNewData triggerExecutor",
        f"{_STREAMING}.runtime.SingleBatchExecutor": "",
    },
    "events of queries": {
        f"{_SQL}.streaming.PythonStreamingQueryListener": "",
        f"{_SQL}.streaming.PythonStreamingQueryListenerWrapper": "",
    },
    "diagnosis": {
        "org.apache.spark.status.AppStatusStore": (
            "activeStages executorList jobsList lastStageAttempt store taskList"
        ),
        "org.apache.spark.status.JobDataWrapper": "completionTime info sqlExecutionId",
        "org.apache.spark.status.api.v1.JacksonMessageWriter": "mapper",
        f"{_SQL}.internal.SharedState": "statusStore",
        f"{_SQL}.execution.ui.SQLAppStatusStore": "executionMetrics planGraph",
    },
    "failures": {
        "org.apache.spark.api.python.PythonErrorUtils": "getCondition getSqlState",
        "org.apache.spark.SparkThrowable": "getQueryContext",
    },
    "state that is loaded": {
        f"{_SQL}.internal.SharedState": "activeStreamingQueries",
        f"{_STATE}.StateStore$": (
            "doMaintenance highPriorityThreadPool loadedProviders lowPriorityThreadPool maintenanceThreadPool "
            "unloadedProvidersToClose"
        ),
        f"{_STATE}.StateStore$MaintenanceThreadPool": "threadPool",
        f"{_STATE}.StateStoreCoordinatorRef": "deactivateInstances",
        f"{_STATE}.StateStoreId": "checkpointRootLocation",
        f"{_STATE}.StateStoreProviderId": "queryRunId storeId",
    },
    "savepoints of state": {
        "org.apache.spark.util.Utils": "unzipFilesFromFile",
        f"{_STATE}.LineageItem": "checkpointUniqueId version",
        f"{_STATE}.RocksDBCheckpointMetadata": "immutableFiles readFromFile",
        f"{_STATE}.RocksDBFileManager": "getChangelogReader",
        f"{_STATE}.RocksDBImmutableFile": "LOG_FILES_DFS_SUBDIR SST_FILES_DFS_SUBDIR dfsFileName isSstFile",
        f"{_STATE}.StateStoreChangelogReader": "lineage",
        f"{_STATE}.StateStoreConf": "empty",
    },
}

# By version of Spark, those that it does not have: by the end of the owner's name. What needs one has another way, or
# is refused by name; see `spark.capabilities`. In 4.0 `execution.streaming` has no packages `runtime` and
# `checkpointing`.
ABSENT: Final[Mapping[str, Collection[str]]] = {
    "4.0": (
        "SparkConnectGrpcException._grpc_status_code",
        "SparkSession._streamingCheckpointManager",
        "TransformWithStateInPySpark.leftAttributes",
        "TransformWithStateInPySpark.timeMode",
        "PythonErrorUtils.getCondition",
        "PythonErrorUtils.getSqlState",
        "DataStreamWriter.name",
        "DataStreamWriter.sinkName",
        "StateStore$.highPriorityThreadPool",
        "StateStore$.lowPriorityThreadPool",
        "StateStore$.unloadedProvidersToClose",
    ),
    "4.1": (
        "SparkSession._streamingCheckpointManager",
        "DataStreamWriter.name",
        "DataStreamWriter.sinkName",
        "StateStore$.highPriorityThreadPool",
        "StateStore$.lowPriorityThreadPool",
    ),
    "4.2": ("StateStore$.highPriorityThreadPool", "StateStore$.lowPriorityThreadPool"),
    "4.3": ("StateStore$.maintenanceThreadPool",),
}
