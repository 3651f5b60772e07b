"""The kinds of exchanges, found by their names: those that ship with the package, and those of other packages."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from inspect import isabstract
from types import MappingProxyType
from typing import Any, Final

from spark_ext.errors import ConfigurationError, refused
from spark_ext.exchange.contract import NOTHING_STARTED, ExchangeKind, KindOptions, Parts
from spark_ext.exchange.descriptor import Descriptor
from spark_ext.exchange.place import ABOUT
from spark_ext.storage import Location

GROUP: Final = "spark_ext.exchange_kinds"
SHIPPED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "arrow": "spark_ext.exchange.arrow:ArrowKind",
        "delta": "spark_ext.exchange.delta:DeltaKind",
        "kafka": "spark_ext.exchange.kafka:KafkaKind",
    }
)
NONE: Final[Mapping[str, str]] = MappingProxyType({})

_known: dict[str, ExchangeKind[Any]] = {}
_alone: set[str] = set()  # shipped kinds whose names no other package has


def kind_named(name: str, who: str) -> ExchangeKind[Any]:
    """A kind by its name.

    Raises:
        ConfigurationError: no installed package has it, or two have; it cannot be imported, or is no `ExchangeKind`.
    """
    if name not in _known:
        place = SHIPPED.get(name) or _installed(name, who)
        _known[name] = _loaded(name, place, who)
    return _known[name]


def checked_options(name: str, options: Mapping[str, str], who: str) -> Mapping[str, str]:
    """Refuse, before anything is started, a kind that cannot be used, and options that it does not have."""
    if name in SHIPPED and name not in _alone:
        if others := _packages(name):
            raise _two(name, ["spark-ext", *others], who)
        _alone.add(name)
    kind_named(name, who).options_type.parse(name, options, who)
    return options


def parts(kind: str, place: str, who: str, options: Mapping[str, str] = NONE) -> Parts:
    """The master, writer and reader of the exchange in a folder, a path or URI."""
    found = kind_named(kind, who)
    return found.parts(place, found.options_type.parse(kind, options, who), who)


_opened: dict[tuple[Any, ...], Parts] = {}


def opened(kind: str, place: str, exchange: str, who: str, options: Mapping[str, str]) -> Parts:
    """The same parts for all calls of a process; by the exchange's id, as another one may come into the same place."""
    key = (kind, place, exchange, *sorted(options.items()))
    if key not in _opened:
        _opened[key] = parts(kind, place, who, options)
    return _opened[key]


def parts_at(place: str, who: str) -> Parts:
    """The parts of the exchange in a folder, by its description; without an exchange, those of a kind that says so."""
    about = described_at(place, who)
    if about is not None:
        return parts(about.kind, place, who, about.options)
    return parts("delta" if Location.of(place, {}).local is None else "arrow", place, who)


def described_at(place: str, who: str) -> Descriptor | None:
    """What the exchange in a folder is, of any kind; None: the folder has none."""
    location = Location.of(place, {})
    content = location.folder.find(ABOUT)
    if content is not None:
        return Descriptor.from_json(content.decode("utf-8", "replace"), who)
    if location.local is not None and not (location.local / "_delta_log").exists():
        return None
    return parts("delta", place, who).master.describe()


def _loaded(name: str, place: str, who: str) -> ExchangeKind[Any]:
    module, _, attribute = place.partition(":")
    try:
        kind: Any = import_module(module)
        for part in filter(None, attribute.split(".")):
            kind = getattr(kind, part)
    except Exception as problem:
        raise _unusable(name, place, f"cannot be imported: {type(problem).__name__}: {problem}", who) from problem
    if not (isinstance(kind, type) and issubclass(kind, ExchangeKind)) or isabstract(kind):
        raise _unusable(name, place, "does not implement spark_ext.exchange.contract.ExchangeKind", who)
    if getattr(kind, "name", None) != name:
        raise _unusable(name, place, f"calls itself '{getattr(kind, 'name', None)}'", who)
    if not issubclass(kind.options_type, KindOptions):
        raise _unusable(name, place, "has options that are no KindOptions", who)
    found: ExchangeKind[Any] = kind()
    return found


def _packages(name: str) -> dict[str, str]:
    """The entry points of a name, by package."""
    from importlib.metadata import entry_points

    found = entry_points(group=GROUP, name=name)
    return {point.dist.name if point.dist is not None else point.value: point.value for point in found}


def _installed(name: str, who: str) -> str:
    found = _packages(name)
    if len(found) > 1:
        raise _two(name, found, who)
    for place in found.values():
        return place
    from importlib.metadata import entry_points

    there = sorted({*SHIPPED, *(point.name for point in entry_points(group=GROUP))})
    raise refused(
        f"unknown exchange kind '{name}'",
        who,
        f"use one of: {', '.join(there)}; or install the package that has it, for the Python of the driver and of the "
        "executors",
        kept=NOTHING_STARTED,
    )


def _two(name: str, packages: Any, who: str) -> ConfigurationError:
    what = f"several packages have an exchange kind '{name}': {', '.join(sorted(packages))}"
    return refused(what, who, "uninstall all but one of them", kept=NOTHING_STARTED)


def _unusable(name: str, place: str, what: str, who: str) -> ConfigurationError:
    do = "correct or update the package that has it, or use another kind"
    return refused(f"the exchange kind '{name}' ({place}) {what}", who, do, kept=NOTHING_STARTED)
