"""The stages of `hybrid`: their options, sources, columns and names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from functools import cached_property
from importlib import import_module
from typing import Annotated, Any

import pyarrow as pa
from pydantic import BeforeValidator, Field, PrivateAttr, field_validator
from pyspark.sql.types import StructField, StructType

from spark_ext.errors import ConfigurationError, refused
from spark_ext.options import JOBS_OWN
from spark_ext.schemas.ddl import columns
from spark_ext.sources.aligned import AlignedSource
from spark_ext.sources.contract import ChannelSource, SourceOptions
from spark_ext.sources.hybrid.cutover import check_columns, is_time
from spark_ext.sources.staged import StagedSource
from spark_ext.spark.session import formats

_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_SELECTED = re.compile(r"(?P<column>\S+)(?:\s+as\s+(?P<name>\S+))?", re.IGNORECASE)

OWN = ("format", "select", "seam")  # not its source's


def _names(value: object) -> object:
    return tuple(name.strip() for name in value.split(",")) if isinstance(value, str) else value


class HybridOptions(SourceOptions):
    """Options of `hybrid`. Those of a stage are written `<stage>.<option>`."""

    stages: Annotated[tuple[str, ...], BeforeValidator(_names)] = Field(min_length=1)
    """Names of the stages, comma-separated, in their order."""

    _given: dict[str, dict[str, str]] = PrivateAttr(default_factory=dict)

    @field_validator("stages")
    @classmethod
    def _distinct(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if not _NAME.fullmatch(name):
                raise ValueError(f"'{name}' cannot name a stage: use lower-case letters, digits, _ and -")
        if len(set(value)) != len(value):
            raise ValueError("two stages have the same name; give each stage a name of its own")
        return value

    @classmethod
    def parse(cls, connector: str, raw: Mapping[str, str]) -> HybridOptions:
        """Build the options, with those of the stages kept apart."""
        own = {name: value for name, value in raw.items() if "." not in name}
        cls.keep_secret({name.lower(): value for name, value in raw.items()})
        made = super().parse(connector, own)
        given: dict[str, dict[str, str]] = {name: {} for name in made.stages}
        who = f"{connector} {made.uid}"
        for full, value in raw.items():
            stage, dot, option = full.lower().partition(".")
            if not dot or full.lower().startswith(JOBS_OWN):
                continue
            if stage not in given:
                near = difflib.get_close_matches(stage, list(given), n=1)
                raise _refused(
                    f"unknown stage '{stage}'" + (f"; did you mean '{near[0]}'?" if near else ""),
                    who,
                    f"name it in 'stages', or remove '{full}'",
                )
            given[stage][option] = value
        for stage, options in given.items():
            if "format" not in options:
                raise _refused(f"stage '{stage}' has no format", who, f'add .option("{stage}.format", "...")')
        made._given = given
        return made

    def of(self, stage: str) -> Mapping[str, str]:
        """The options of a stage, without the prefix of its name."""
        return self._given[stage]

    @classmethod
    def is_secret(cls, name: str) -> bool:
        """Also what is secret in any source: a stage's name does not tell which source it is."""
        option = name.rpartition(".")[2]
        others = {kind.options_type for kind in _possible().values()}
        return super().is_secret(option) or any(options.is_secret(option) for options in others)

    @classmethod
    def without_pace(cls, given: Mapping[str, str]) -> dict[str, str]:
        """Also without those of the stages."""
        low = {name.lower(): value for name, value in given.items()}

        def paces(name: str) -> bool:
            stage, dot, option = name.partition(".")
            return bool(dot) and option in source_type(low[f"{stage}.format"], "hybrid").options_type.pace_fields

        return {name: value for name, value in super().without_pace(low).items() if not paces(name)}

    def identity(self) -> dict[str, str]:
        """Format and place of each stage. That the stages come in their order is checked when one is entered."""
        found: dict[str, str] = {}
        for stage, given in self._given.items():
            own = {name: value for name, value in given.items() if name not in OWN}
            kind = source_type(given["format"], f"source '{self.uid}', stage '{stage}'")
            options = kind.options_type.parse(kind.name(), {**own, "uid": f"{self.uid}.{stage}"})
            found[f"{stage}.format"] = given["format"]
            found |= {f"{stage}.{name}": value for name, value in options.identity().items()}
        return found

    def public(self) -> dict[str, Any]:
        """With the options of the stages, secrets masked."""
        staged = {f"{stage}.{name}": value for stage, given in self._given.items() for name, value in given.items()}
        return super().public() | {name: self.shown(name, value) for name, value in staged.items()}


class Stage:
    """One stage: a source, the columns that are taken from it, and those of its cutover."""

    def __init__(self, options: HybridOptions, name: str) -> None:
        self.name = name
        self._uid = options.uid
        given = dict(options.of(name))
        self._who = f"source '{options.uid}', stage '{name}'"
        self._format = given.pop("format")
        self.select = _selected(given.pop("select", None), self._who)
        # Columns that name a partition, then the offset; or one time; or nothing.
        self.cutover = tuple(part.strip() for part in given.pop("seam", "").split(":") if part.strip())
        self._kind = source_type(self._format, self._who)
        if self._kind.requires_finalization:
            raise _refused(
                f"the source {self._format} has to be finalized, which is not supported for a stage",
                self._who,
                "use it on its own, not as a stage",
            )
        if self.cutover and name == options.stages[-1]:
            raise _refused("the last stage has a 'seam', but no stage comes after it", self._who, "remove the option")
        self._given = {**given, "uid": f"{options.uid}.{name}"}
        self.source = self.fresh()
        if self.source.options.on_bad_row != "fail":
            raise _refused(
                "a stage has on_bad_row, which is an option of the whole source",
                self._who,
                f"replace '{name}.on_bad_row' by 'on_bad_row', and likewise the options that belong to it",
            )

    def fresh(self) -> ChannelSource:
        """The stage's source, new."""
        return self._kind(self._given)

    def _whole(self) -> StructType:
        """All columns of its source, under their own names."""
        found = self.source.schema()
        if isinstance(found, StructType):
            return found
        return columns(found)

    def schema(self) -> StructType:
        """Its columns, with the names that `select` gives."""
        whole = self._whole()
        if self.cutover:
            check_columns(whole, self.cutover, self._who)
        if self.select is None:
            return whole
        for column in self.select.values():
            if column not in whole.names:
                raise _refused(
                    f"column '{column}' does not exist; the columns are: {', '.join(whole.names)}",
                    self._who,
                    f"correct the option '{self.name}.select'",
                )
        return StructType(
            [StructField(name, whole[column].dataType, whole[column].nullable) for name, column in self.select.items()]
        )

    @property
    def cutover_by_time(self) -> bool:
        """Whether the last column of its cutover is of times."""
        return is_time(check_columns(self._whole(), self.cutover, self._who)[-1].dataType)

    @cached_property
    def cutover_reader(self) -> ChannelSource:
        """Its source with the columns of the cutover alone, of the types that the user has declared if they were."""
        declared = self.source.declared
        known = declared is not None and set(self.cutover) <= set(declared.names)
        reader = self.fresh()
        reader.declared = check_columns(
            declared if declared is not None and known else self._whole(), self.cutover, self._who
        )
        return reader

    def __getstate__(self) -> dict[str, Any]:
        """Sent to executors without the second source."""
        return {key: value for key, value in self.__dict__.items() if key != "cutover_reader"}

    def check(self, wanted: StructType, other: str) -> None:
        """Refuse columns that differ from those of another stage; their order does not matter."""
        mine = self.schema()
        for field in wanted:
            found = mine[field.name].dataType.simpleString() if field.name in mine.names else None
            if found != field.dataType.simpleString():
                here = "missing" if found is None else f"of type {found}"
                raise _refused(
                    f"column '{field.name}' is of type {field.dataType.simpleString()} in stage '{other}' and {here} "
                    f"in stage '{self.name}'",
                    self._who,
                    f"choose and rename columns with '{self.name}.select' or '{other}.select'"
                    + ("" if found is None else "; convert a type in the stage's own source, for example in its query"),
                )
        more = [name for name in mine.names if name not in wanted.names]
        if more:
            raise _refused(
                f"column '{more[0]}' is in stage '{self.name}' but not in stage '{other}'",
                self._who,
                f"choose columns with '{self.name}.select'",
            )

    def prepared(self, declared: StructType | None) -> ChannelSource:
        """Its source, with the wanted columns declared under the names that they have there."""
        if declared is not None and self.source.declared is None:
            names = self.select or {}
            self.source.declared = StructType(
                [StructField(names.get(field.name, field.name), field.dataType, field.nullable) for field in declared]
            )
        return self.source


def source_type(name: str, who: str) -> type[ChannelSource]:
    """The class of a format: one that is registered in this process, one that ships, or `module:class`."""
    module, colon, member = name.partition(":")
    if colon:
        return _imported(module, member, who)
    found = formats.find(name)
    if found is not None and _may_be_stage(found):
        kind: type[ChannelSource] = found
        return kind
    defined = formats.unregistered(name, ChannelSource) if found is None else None
    if defined is not None:
        raise _refused(
            f"the class {defined.__qualname__} has the format name '{name}' and is not registered",
            who,
            f"name it as {defined.__module__}:{defined.__qualname__}, which also works in Spark's workers",
        )
    names = ", ".join(sorted(_possible()))
    raise _refused(f"unknown source '{name}' for a stage", who, f"use one of {names}, or module:class of your own")


def _possible() -> dict[str, type[ChannelSource]]:
    return {name: kind for name, kind in formats.known().items() if _may_be_stage(kind)}


def _may_be_stage(kind: type[Any]) -> bool:
    if issubclass(kind, StagedSource):
        return kind.may_be_stage
    return issubclass(kind, ChannelSource) and not issubclass(kind, AlignedSource)


def _imported(module: str, member: str, who: str) -> type[ChannelSource]:
    what = f"'{module}:{member}'"
    try:
        found = getattr(import_module(module), member)
    except (ImportError, AttributeError) as problem:
        raise _refused(f"{what} cannot be imported: {problem}", who, "name an importable module:class") from None
    if not (isinstance(found, type) and issubclass(found, ChannelSource)):
        raise _refused(f"{what} is not a source", who, "name a subclass of ChannelSource")
    return found


def rename(batch: pa.RecordBatch, select: Mapping[str, str] | None) -> pa.RecordBatch:
    """Choose columns and give them their new names."""
    if select is None:
        return batch
    wanted = {name: column for name, column in select.items() if column in batch.schema.names}
    return pa.RecordBatch.from_arrays([batch.column(column) for column in wanted.values()], list(wanted))


def _selected(text: str | None, who: str) -> dict[str, str] | None:
    """`"a, b as c"` as name to column."""
    if text is None:
        return None
    out: dict[str, str] = {}
    for part in text.split(","):
        found = _SELECTED.fullmatch(part.strip())
        if found is None or (found["name"] or found["column"]) in out:
            raise _refused(f"'{part.strip()}' does not choose a column", who, "write 'a, b as c', each name once")
        out[found["name"] or found["column"]] = found["column"]
    return out


def _refused(what: str, who: str, do: str) -> ConfigurationError:
    return refused(what, who, do, kept="nothing was read")
