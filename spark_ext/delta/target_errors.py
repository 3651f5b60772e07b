"""The errors of a sink's Delta table, and of its storage."""

from __future__ import annotations

import errno
from dataclasses import dataclass

from deltalake.exceptions import DeltaError

from spark_ext.delta.failures import error_number
from spark_ext.errors import CommitError, ConfigurationError, SparkExtError, StorageError, refused


@dataclass(frozen=True)
class TargetErrors:
    """The errors of a sink's table. Failures of its storage may pass; the job decides how long it waits."""

    operator: str

    def storage(self, problem: BaseException, doing: str) -> SparkExtError:
        """The error for a read or write that failed."""
        if error_number(problem, str(problem)) == errno.ENOTDIR:
            do = "let 'path' name a folder"
            return refused(f"{doing} failed: a part of the path is a file: {problem}", self.operator, do)
        return StorageError(
            f"{doing} failed: {problem}",
            operator=self.operator,
            kept="everything committed before",
            do="check the storage (space, permissions, network, storage_options)",
        )

    def not_created(self, problem: BaseException) -> SparkExtError:
        """The error for a table that could not be created."""
        if not isinstance(problem, DeltaError) or error_number(problem, str(problem)) is not None:
            return self.storage(problem, "creating the table")
        return ConfigurationError(
            f"the table could not be created: {problem}",
            operator=self.operator,
            kept="nothing was written",
            do="correct the options 'table_properties', 'partition_by' or 'path'",
        )

    def contended(self, doing: str, attempts: int) -> SparkExtError:
        """The error for a commit that gave way to other writers in each of its attempts."""
        return CommitError(
            f"{doing} failed: other writers committed to the table first, {attempts} times in a row",
            operator=self.operator,
            kept="the epoch's files, not yet visible",
            do="find out who commits to the table so often",
        )
