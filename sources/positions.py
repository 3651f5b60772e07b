"""Checks of positions to which an operator sends a channel."""

from __future__ import annotations

from spark_ext.errors import ConfigurationError, refused
from spark_ext.model.offsets import Json


def shown(position: Json) -> str:
    """A position as it appears in messages."""
    text = repr(position)
    return text if len(text) <= 80 else f"{text[:77]}..."


def no_position(position: Json, wanted: str, who: str) -> ConfigurationError:
    """The refusal of a position."""
    what = f"{shown(position)} is not a position of this channel: give {wanted}"
    return refused(what, who, "send the event again with such a position", kept="the channel continues where it is")


def number_in(position: Json, least: int, most: int | None, what: str, who: str) -> int:
    """A position that is a whole number from `least` to `most`; None means no limit."""
    if isinstance(position, bool) or not isinstance(position, int) or position < least:
        fits = False
    else:
        fits = most is None or position <= most
    if not fits:
        raise no_position(
            position, f"{what}, {f'from {least} to {most}' if most is not None else f'{least} or more'}", who
        )
    return int(position)
