"""The sink `kafka_2pc`: each epoch is one Kafka transaction, exactly once.

    messages.writeStream.format("kafka_2pc").options(uid="out", bootstrap_servers="kafka:9092", topic="orders").start()

Tasks stage their messages as files (`staging`); the driver publishes them with one transactional producer (`producer`),
together with a record of the epoch (`epochs`). See `docs/kafka_2pc.md` for the guarantee and its limits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from pydantic import Field
from pyspark.sql.types import StructType

from spark_ext.clients.kafka import admin, no_topic, partitions, topic_ids
from spark_ext.errors import NOTHING_DONE, NOTHING_VISIBLE, FencedError, StateError, refused
from spark_ext.failpoints import FailPoint, reach
from spark_ext.model.commits import FenceMark
from spark_ext.model.identity import Identity
from spark_ext.options import Bytes, Milliseconds
from spark_ext.sinks.contract import Claim, CommitOutcome, Epoch, SinkOptions, Task, TwoPhaseCommitSink
from spark_ext.sinks.kafka_2pc.formats import FormatOptions, Formats, encoded, kept_encoders
from spark_ext.sinks.runtime.aside import Aside

if TYPE_CHECKING:
    from spark_ext.sinks.kafka_2pc.epochs import EpochRecord, EpochsTopic
    from spark_ext.sinks.kafka_2pc.producer import Limits, Session
    from spark_ext.sinks.kafka_2pc.staging import Astray, Staged, Staging


class KafkaSinkOptions(SinkOptions, FormatOptions):
    """Options of `kafka_2pc`."""

    secret_fields: ClassVar[frozenset[str]] = frozenset({"client_options", "schema_registry_options"})

    identity_fields: ClassVar[frozenset[str]] = frozenset(
        {"bootstrap_servers", "epochs_topic", "schema_registry_url", "topic", "transactional_id"}
    )

    moving_fields: ClassVar[frozenset[str]] = frozenset({"schema_registry_url"})

    foreign_names: ClassVar[Mapping[str, str]] = {"kafka.bootstrap.servers": "bootstrap_servers"}

    staging: str | None = Field(default=None, min_length=1)  # Shared folder; default: in the job's state
    epochs_topic: str = Field(default="spark-ext-epochs", min_length=1)  # Compacted; created if it does not exist
    transactional_id: str | None = Field(default=None, min_length=1)  # `spark-ext.<topic>.<uid>`
    transaction_timeout: Milliseconds = Field(default=300_000, gt=0)  # ms; longer than sending an epoch takes
    max_message_bytes: Bytes = Field(default=1_000_000, gt=0)  # Key and value; below the topic's
    checkpointlocation: str | None = None  # Spark's own option; see `staging`


class KafkaTwoPhaseCommit(TwoPhaseCommitSink):
    """Exactly-once messages in Kafka topics, one transaction per epoch."""

    options_type = KafkaSinkOptions
    options: KafkaSinkOptions
    quarantines = True

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._folder: str | None = None
        self._formats: Formats | None = None  # Of the rows that were validated; an instance in a task has none

    @classmethod
    def name(cls) -> str:
        """`kafka_2pc`."""
        return "kafka_2pc"

    @property
    def _who(self) -> str:
        return f"sink '{self.options.uid}' (kafka_2pc {self.options.topic or 'into the topics of its rows'})"

    @cached_property
    def _epochs(self) -> EpochsTopic:
        from spark_ext.sinks.kafka_2pc.epochs import EpochsTopic

        options = self.options
        key = options.transactional_id or f"spark-ext.{options.topic or '*'}.{options.uid}"
        return EpochsTopic(options, options.epochs_topic, key, self._who)

    @property
    def _limits(self) -> Limits:
        from spark_ext.sinks.kafka_2pc.producer import Limits

        return Limits(self.options.transaction_timeout, self.options.max_message_bytes)

    def _place(self, state: str = "") -> str:
        """The staging folder; determined on the driver, and sent to the executors."""
        if self._folder is None:
            state = Identity.of(self.given, self._who).state or state
            base = self.options.staging or (f"{state}/staging" if state else None)
            if base is None and self.options.checkpointlocation:
                base = f"{self.options.checkpointlocation.rstrip('/')}/staging"
            if base is None:
                raise refused(
                    "tasks have no folder in which to stage their messages",
                    self._who,
                    "set the option 'staging' to a folder that driver and executors share, or set 'checkpointLocation' "
                    "as an option, or run the query in a job",
                )
            # Not shared with sinks of other targets, since old files in it are deleted.
            self._folder = f"{base.rstrip('/')}/{self._epochs.key.replace('*', '_')}"
        return self._folder

    @property
    def _staging(self) -> Staging:
        from spark_ext.sinks.kafka_2pc.staging import Staging

        return Staging(self._place(), self._who)

    def __getstate__(self) -> dict[str, Any]:
        """Sent to executors with the folder's name."""
        self._place()
        return {**self.__dict__, "_formats": None}

    def validate(self, schema: StructType) -> None:
        """Refuse rows that are not messages, a topic that does not exist, and a client that cannot connect.

        With a format also a schema that cannot be registered.
        """
        from spark_ext.sinks.kafka_2pc.staging import check_columns

        check_columns(schema, self.options.topic, self._who, self.options.encoded)
        options, kept = self.options, NOTHING_DONE
        asked = options.topic or options.epochs_topic
        with admin(options, self._who) as client:
            found = partitions(client, [asked], options.request_timeout / 1000, self._who, kept)
        if options.topic is not None and not found[asked]:
            raise no_topic(options.topic, "written", self._who, kept)
        if options.encoded:
            self._formats = Formats(options, schema, self._who)
            self._formats.check()

    def write(self, schema: StructType, batches: Iterator[pa.RecordBatch], task: Task) -> Staged | None:
        """Write a file of messages that no reader sees."""
        from spark_ext.sinks.kafka_2pc.staging import check_columns

        options = self.options
        check_columns(schema, options.topic, self._who, options.encoded)
        encoders = kept_encoders(options, schema, (task.query_id, task.incarnation, task.start), self._who)
        bad = Aside(self, task).row if self.collects_bad_rows else None
        encode = partial(encoded, encoders=encoders) if encoders else None
        return self._staging.write(batches, task, options.topic, options.max_message_bytes, bad, encode)

    def commit(self, schema: StructType, epoch: Epoch, prepared: Sequence[Staged]) -> CommitOutcome:
        """Publish all messages of the epoch and its record in one transaction."""
        from spark_ext.sinks.kafka_2pc.producer import forget, forget_passed, session

        options, staging = self.options, self._staging

        def refuse_newer(record: EpochRecord) -> None:
            self._refuse_newer(record, epoch.mark)

        try:
            forget_passed(options, self._epochs, epoch)
            held = session(options, self._epochs, self._limits, epoch.mark, refuse_newer, refuse_newer)
            topics = self._topic_ids({topic for one in prepared for topic, _ in one.topics}) if epoch.start else {}
            self._check(held.record, epoch, topics)
            if held.record.holds(epoch):
                outcome = CommitOutcome.ALREADY_COMMITTED
            else:
                astray = self._astray(held, prepared)
                if astray is not None:
                    for batch in staging.read_all(prepared):
                        astray.give(batch, self.bad_row)
                    topics = {topic: found for topic, found in topics.items() if found}
                record = held.record.with_epoch(epoch, topics, self.keep_bad_rows())
                messages = staging.read_all(prepared)
                held.publish(messages if astray is None else map(astray.without, messages), options.topic, record)
                outcome = CommitOutcome.COMMITTED
                reach(FailPoint.KAFKA_COMMITTED)
        except BaseException:
            # A new session finds out whether it took effect.
            forget(options, self._epochs)
            raise
        staging.remove(prepared)
        return outcome

    def _astray(self, held: Session, prepared: Sequence[Staged]) -> Astray | None:
        """The messages that are put aside because their topic or partition does not exist, or None."""
        if not self.collects_bad_rows:
            held.require(prepared)
            return None

        lacking = held.lacking(prepared)
        if lacking.get(self.options.topic or "") == 0:
            held.require(prepared)  # the option is wrong, not the rows
        if not lacking:
            return None
        from spark_ext.sinks.kafka_2pc.staging import Astray

        return Astray(lacking, self.options.topic)

    def kept_bad_rows(self, epoch: Epoch) -> int | None:
        """The mark in the sink's record."""
        return self._epochs.latest().mark_of(epoch)

    def check(self, epoch: Epoch) -> None:
        """Read the sink's record, and wait for open transactions of other sinks only if it seems to be the wrong one.

        An epoch without rows names no topic, so only the topic of the option is compared. Whether one that earlier rows
        named was deleted by mistake, or because nothing is written to it any longer, only the next rows show.
        """
        topics = self._topic_ids([self.options.topic] if self.options.topic else [])
        try:
            self._check_last(epoch, topics, settled=False)
        except StateError:
            # The newest record may be hidden: by an open transaction, or because the end of its own transaction is
            # decided and not yet written to the partition.
            self._check_last(epoch, topics, settled=True)

    def _check_last(self, epoch: Epoch, topics: Mapping[str, str], *, settled: bool) -> None:
        record = self._epochs.latest(settled=settled)
        self._refuse_newer(record, epoch.mark)
        self._check(record, epoch, topics)

    def _check(self, record: EpochRecord, epoch: Epoch, topics: Mapping[str, str]) -> None:
        mark = record.mark if record.incarnation else None
        epoch.check_target(mark, record.epochs.get(epoch.application), self._epochs_who)
        record.check_topics(topics, self._epochs_who)

    def _topic_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        """The ids of topics; "" for one that does not exist."""
        if not topics:
            return {}
        from spark_ext.sinks.kafka_2pc.epochs import TOPICS

        asked = sorted(topics)[:TOPICS]
        with admin(self.options, self._who) as client:
            found = topic_ids(client, asked, self.options.request_timeout / 1000, self._who, NOTHING_VISIBLE)
        return {topic: found.get(topic, "") for topic in asked}

    @property
    def _epochs_who(self) -> str:
        return f"{self._who}, transactional id '{self._epochs.key}'"

    def claim(self, claim: Claim) -> None:
        """Take the transactional id, which ends its owner's transaction, record the claim, and clean up the staging.

        Kafka decides who has the id, the record decides who may have it: an older driver that takes the id back reads
        there that it is fenced, and the newer one takes it again.
        """
        from spark_ext.sinks.kafka_2pc.producer import forget, session

        options = self.options
        self._place(claim.state)
        if self._formats is not None:
            self._formats.take()  # here, so that no task has to wait for the registration of another one
        reach(FailPoint.KAFKA_BEFORE_FENCE)
        forget(options, self._epochs)
        topics = self._topic_ids([options.topic] if options.topic else [])
        try:
            held = session(
                options,
                self._epochs,
                self._limits,
                claim.mark,
                # An older record may lack epochs. The owner, epochs and ids that it holds are in later ones as well.
                lambda record: self._refuse_other(record, replace(claim, previous=None), topics),
                lambda record: self._refuse_other(record, claim, topics),
            )
            held.publish((), options.topic, held.record.claimed(claim, topics))
        finally:
            # Epochs are committed by another process.
            forget(options, self._epochs)
        reach(FailPoint.KAFKA_FENCED)
        self._staging.clean(claim.incarnation)
        reach(FailPoint.KAFKA_CLEANED)

    def _refuse_newer(self, record: EpochRecord, mark: FenceMark) -> None:
        mark.check(record.mark, self._epochs_who)
        if record.incarnation > mark.incarnation:
            raise FencedError(
                f"incarnation {record.incarnation} of job '{record.job}' has taken this sink; this writer is outside "
                "any job",
                operator=self._epochs_who,
                kept="all committed epochs; the newer incarnation continues from them",
                do="nothing: the newer incarnation continues; make sure that only one is started",
            )

    def _refuse_other(self, record: EpochRecord, claim: Claim, topics: Mapping[str, str]) -> None:
        if record.job_id not in ("", claim.job_id):
            raise refused(
                f"job '{record.job}' wrote to this target under the sink uid '{claim.sink}': it is another job, or the "
                "same one with a new state directory",
                self._epochs_who,
                "give the sink another uid or another 'transactional_id', which adds to the existing messages",
                kept="the target is unchanged",
            )
        self._refuse_newer(record, claim.mark)
        known = claim.known(record.epochs)
        claim.check_state(known, record.mark, self._epochs_who)
        if known:
            record.check_topics(topics, self._epochs_who)
