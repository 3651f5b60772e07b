"""Buttons for notebooks: pause, resume, drain, stop, and a rate limit for each source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any

from spark_ext.errors import SparkExtError

if TYPE_CHECKING:
    from spark_ext.steering.commands import Commands
    from spark_ext.steering.sent import SentEvent


class Panel:
    """The widget, and what its buttons do. A drain or stop has to be confirmed by a second button."""

    def __init__(self, control: Commands, sources: Callable[[], Sequence[str]], view: Callable[[], str]) -> None:
        self._control, self._sources, self._view = control, sources, view
        self._w: Any = import_module("ipywidgets")
        self.said = self._w.HTML()
        """What has become of the last click."""
        self.view = self._w.HTML(view())
        """What is in force, and the last events."""
        self.pause = self._button("Pause", "pause", lambda: control.pause())
        self.resume = self._button("Resume", "play", lambda: control.resume())
        self.refresh = self._button("Refresh", "refresh", None)
        self.drain = self._confirmed("Drain", "the job ends for good", lambda: control.drain())
        self.stop = self._confirmed("Stop", "a further start continues", lambda: control.stop())
        self.limits = {uid: self._limit(uid) for uid in self._known()}
        """By source: the field and the buttons that set and lift its limit."""
        first = self._w.HBox([self.pause, self.resume, *self.drain, *self.stop, self.refresh])
        rows = [self._w.HBox(list(parts)) for parts in self.limits.values()]
        self.widget: Any = self._w.VBox([first, *rows, self.said, self.view])

    def _known(self) -> Sequence[str]:
        try:
            return self._sources()
        except SparkExtError:
            return ()

    def _button(self, text: str, icon: str, act: Callable[[], SentEvent] | None, style: str = "") -> Any:
        made = self._w.Button(description=text, icon=icon, button_style=style)
        made.on_click(lambda _: self._do(act))
        return made

    def _confirmed(self, text: str, meaning: str, act: Callable[[], SentEvent]) -> tuple[Any, Any, Any]:
        """A button that only shows two others: one that acts, one that does not."""
        first = self._w.Button(description=text, tooltip=f"{meaning}; asks first")
        sure = self._w.Button(description=f"Yes, {text.lower()}", button_style="danger", tooltip=meaning)
        not_sure = self._w.Button(description="No")

        def show(asked: bool) -> None:
            first.layout.display = "none" if asked else None
            for one in (sure, not_sure):
                one.layout.display = None if asked else "none"

        def do(_: Any) -> None:
            show(False)
            self._do(act)

        first.on_click(lambda _: show(True))
        not_sure.on_click(lambda _: show(False))
        sure.on_click(do)
        show(False)
        return first, sure, not_sure

    def _limit(self, uid: str) -> tuple[Any, Any, Any]:
        field = self._w.BoundedFloatText(value=1000, min=1e-3, max=1e15, description=uid, tooltip="rows per second")
        target = f"source:{uid}"
        put = self._button("Limit rows/s", "tachometer", lambda: self._control.rate_limit(target, field.value))
        lift = self._button("No limit", "times", lambda: self._control.rate_limit(target))
        return field, put, lift

    def _do(self, act: Callable[[], SentEvent] | None) -> None:
        try:
            sent = None if act is None else act()
            self.said.value = (
                "" if sent is None else escape(f"event {sent.sequence}: {sent.kind} {sent.target} accepted")
            )
        except SparkExtError as problem:
            self.said.value = f"<pre>{escape(str(problem))}</pre>"
        self.view.value = self._view()
