"""The command that connects an inbox to a feed."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from spark_ext.clients.library import load
from spark_ext.commands import output
from spark_ext.commands.output import Json, State, Storage, storage_options


def connect(
    state: State,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The inbox's name, as in job.inbox(NAME).")],
    url: Annotated[str, typer.Option(help="Address of the feed, wss://HOST/PATH, or env:NAME or file:PATH with it.")],
    gateway: Annotated[
        str, typer.Option(help="Name of this gateway. Each has its own log and continues it after a restart.")
    ] = "feed",
    subscribe: Annotated[
        list[str] | None, typer.Option(metavar="FRAME", help="Text to send when connected, or env:NAME or file:PATH.")
    ] = None,
    cursor: Annotated[
        str, typer.Option(metavar="POINTER", help="JSON pointer to the cursor in a message, if it has one.")
    ] = "",
    resume: Annotated[
        list[str] | None,
        typer.Option(metavar="FRAME", help="Text to send instead when a cursor is known, with {cursor} in it."),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Header of the handshake; the value may be env:NAME or file:PATH."),
    ] = None,
    wal: Annotated[
        Path | None,
        typer.Option(
            "--wal", metavar="DIR", help="Folder of the write-ahead log, on a local volume. Default: in the inbox."
        ),
    ] = None,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Keep what a WebSocket feed sends until interrupted, or until the job drains the inbox.

    Run the same command again to continue: at the feed's cursor, or without one with a record of the time that is
    missing, which the job reports.
    """
    load("websockets", "ingest", f"inbox '{name}'")
    from spark_ext.gateway.feed import Feed, Subscription

    headers = output.pairs(header, "NAME=VALUE", "--header")
    asked_for = Subscription(url, tuple(subscribe or ()), cursor, tuple(resume or ()), headers)
    options = storage_options(storage) or None
    feed = Feed(state, name, gateway, asked_for, wal=None if wal is None else str(wal), storage_options=options)
    asked = threading.Event()
    before = {one: signal.signal(one, lambda *_: asked.set()) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        drained = feed.run(asked)
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    if as_json:
        output.print_json({"messages": feed.kept, "drained": drained})
    else:
        output.print_text(f"{feed.kept} messages were kept{'; the inbox is drained' if drained else ''}")
