"""Exceptions of Java and of the libraries that Spark calls, wherever in Spark they are met."""

import re
from pathlib import Path

import pytest
import yaml

from spark_ext.failures.classifier import Classifier
from spark_ext.failures.evidence import Evidence, Frame, Link, Raised
from spark_ext.failures.owners import owner_of_class

POSITIONS = {
    "source": ["sql.execution.datasources.FileScanRDD$$anon$1.hasNext", "scheduler.Task.run"],
    "kafka": ["sql.kafka010.consumer.KafkaDataConsumer.get", "scheduler.Task.run"],
    "sink": ["internal.io.FileCommitProtocol.commitTask", "scheduler.Task.run"],
    "delta": ["sql.delta.OptimisticTransactionImpl.doCommit", "sql.delta.sources.DeltaSink.addBatch"],
    "state": ["sql.execution.streaming.state.RocksDBFileManager.loadCheckpointFromDfs", "scheduler.Task.run"],
    "checkpoint": ["sql.execution.streaming.checkpointing.HDFSMetadataLog.add"],
    "shuffle": ["storage.ShuffleBlockFetcherIterator.next", "scheduler.Task.run"],
    "jdbc": ["sql.execution.datasources.jdbc.JdbcUtils$.savePartition", "scheduler.Task.run"],
    "plain": ["SomeThing.run"],
}
"""Methods of Spark that call what raises, innermost first, without `org.apache.spark.`."""

BASES = {
    r"java\.net\.http\.|java\.io\.|java\.nio\.|org\.apache\.hadoop\.|io\.confluent\.": ["java.io.IOException"],
    r"java\.net\.(?!http|URI|Mal)": ["java.net.SocketException", "java.io.IOException"],
    r"javax\.net\.ssl\.": ["javax.net.ssl.SSLException", "java.io.IOException"],
    r"java\.sql\.|org\.postgresql\.": ["java.sql.SQLException"],
    r"java\.nio\.channels\.": ["java.nio.channels.ClosedChannelException"],
    r"java\.nio\.charset\.": ["java.nio.charset.CharacterCodingException"],
    r"java\.time\.": ["java.time.DateTimeException"],
    r".*OutOf(?:Direct)?Memory": ["java.lang.OutOfMemoryError", "java.lang.VirtualMachineError"],
    r"java\.lang\.NumberFormat": ["java.lang.IllegalArgumentException"],
    r"org\.apache\.hadoop\.net\.": ["java.net.SocketTimeoutException", "java.io.InterruptedIOException"],
    r"io\.netty\.channel\.Stack": ["java.nio.channels.ClosedChannelException"],
    r"io\.netty\.channel\.Connect": ["java.net.ConnectException"],
    r"org\.apache\.kafka\.common\.errors\.": ["org.apache.kafka.common.KafkaException"],
    r"org\.apache\.kafka\.common\.errors\.(?:Timeout|Disconnect|Network|Leader|Not|Broker|Coordinator|KafkaStorage|Replica|"
    r"Fenced(?:Leader)|Unknown|Offset(?:Not)|Listener|Throttling|Rebalance|Concurrent|Corrupt)": [
        "org.apache.kafka.common.errors.RetriableException"
    ],
    r"org\.apache\.kafka\.clients\.producer\.": ["org.apache.kafka.common.errors.RetriableException"],
    r"org\.apache\.avro\.": ["org.apache.avro.AvroRuntimeException"],
}
"""What classes derive from, so far as it matters."""

ROOTS = {
    "java.net.": "java.net.Socket.connect",
    "org.apache.kafka.": "org.apache.kafka.clients.NetworkClient.poll",
    "org.apache.hadoop.": "org.apache.hadoop.fs.FileSystem.open",
    "org.postgresql.": "org.postgresql.core.v3.QueryExecutorImpl.execute",
}
JOB = Raised("org.apache.spark.SparkException", "Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times")
SAID = yaml.safe_load(Path(__file__).with_name("java.yaml").read_text())
CLASSIFIER = Classifier()


def raised(kind: str, said: str, position: str) -> Evidence:
    names = [method for prefix, method in ROOTS.items() if kind.startswith(prefix)]
    names += [f"org.apache.spark.{method}" for method in POSITIONS[position]]
    frames = [Frame(owner_of_class(name.rpartition(".")[0], lambda name: False), "x.java", 1, name) for name in names]
    bases = [base for pattern, found in BASES.items() if re.match(pattern, kind) for base in found]
    state = re.match(r"([0-9A-Z]{5}) ", said)
    found = Raised(kind, said, Link.CAUSE, tuple(frames), tuple(bases), sqlstate=state[1] if state is not None else "")
    return Evidence((JOB, found))


@pytest.mark.parametrize(("kind", "said", "positions", "type"), SAID)
def test_what_java_says(kind: str, said: str, positions: list[str], type: str) -> None:
    found = {position: CLASSIFIER.judge(raised(kind, said, position)) for position in positions}
    assert {at: verdict.type.value for at, verdict in found.items()} == dict.fromkeys(positions, type), found
