"""The kinds of exchanges: one is chosen per exchange."""

from __future__ import annotations

from typing import Final

from spark_ext.errors import ConfigurationError
from spark_ext.exchange.contract import Parts
from spark_ext.spark.spark_log import local_path

KINDS: Final = ("arrow",)


def parts(kind: str, place: str, who: str) -> Parts:
    """The master, writer and reader of an exchange.

    Args:
        kind: of the exchange.
        place: its folder, a path or URI.
        who: the exchange, for messages.

    Raises:
        ConfigurationError: the kind is unknown, or cannot be in such a place.
    """
    if kind not in KINDS:
        raise ConfigurationError(
            f"there is no kind of exchange '{kind}'",
            operator=who,
            kept="nothing was started",
            do=f"use one of: {', '.join(KINDS)}",
        )
    folder = local_path(place)
    if folder is None:
        raise ConfigurationError(
            f"an exchange of the kind 'arrow' needs a folder that driver and executors share, and '{place}' is none",
            operator=who,
            kept="nothing was started",
            do="keep the job's state on a shared file system",
        )
    from spark_ext.exchange.arrow import arrow_parts

    return arrow_parts(folder.expanduser().absolute(), who)
