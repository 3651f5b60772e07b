"""The kinds of exchanges: one is chosen per exchange."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

from spark_ext.errors import ConfigurationError
from spark_ext.exchange.contract import Parts
from spark_ext.storage import LocalFolder, Location, check_for_delta, local_path

Kind: TypeAlias = Literal["arrow", "delta"]
"""`arrow`: files in a folder that driver and executors share; `delta`: a Delta table, also in an object store."""

KINDS: Final[tuple[str, ...]] = get_args(Kind)


def parts(kind: str, place: str, who: str) -> Parts:
    """The master, writer and reader of the exchange in a folder, a path or URI."""
    if kind not in KINDS:
        what = f"unknown exchange kind '{kind}'"
        raise ConfigurationError(what, operator=who, kept="nothing was started", do=f"use one of: {', '.join(KINDS)}")
    if kind == "delta":
        from spark_ext.exchange.delta import delta_parts

        location = Location.of(place, {})
        check_for_delta(location, who)
        return delta_parts(location, who)
    folder = local_path(place)
    if folder is None:
        raise ConfigurationError(
            f"an exchange of the kind 'arrow' needs a folder that driver and executors share, and '{place}' is not one",
            operator=who,
            kept="nothing was started",
            do="use the kind 'delta', or keep the job's state on a shared file system",
        )
    from spark_ext.exchange.arrow import arrow_parts

    return arrow_parts(LocalFolder(folder.expanduser().absolute()), who)


_opened: dict[tuple[str, str, str], Parts] = {}


def opened(kind: str, place: str, exchange: str, who: str) -> Parts:
    """The same parts for all calls of a process; by the exchange's id, as another one may come into the same place."""
    key = (kind, place, exchange)
    if key not in _opened:
        _opened[key] = parts(kind, place, who)
    return _opened[key]


def kind_at(place: str) -> str:
    """The kind of the exchange in a folder; `arrow` without an exchange."""
    from deltalake import DeltaTable

    return "delta" if DeltaTable.is_deltatable(Location.of(place, {}).uri) else "arrow"
