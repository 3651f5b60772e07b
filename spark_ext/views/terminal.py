"""Where texts of others are printed: exceptions of users, names, and whatever a ledger contains."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What moves the cursor, begins an escape sequence, changes the direction of writing, or cannot be encoded."""


def plain(text: str) -> str:
    """The text without characters that control a terminal."""
    return _CONTROL.sub("", text)


class Terminal(Console):
    """A console on which no text means anything but itself: no markup, and no escape sequence but rich's own."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """See `Console`. Removed characters take no place, so that the layout stays as it was measured."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(plain(segment.text), segment.style)
