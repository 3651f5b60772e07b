"""The commands of inboxes: accept events over HTTP, and end the log of a gateway that will not come back."""

from __future__ import annotations

import gc
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

from spark_ext.clients.library import load
from spark_ext.commands import output
from spark_ext.commands.ingest_feed import connect
from spark_ext.commands.output import Json, State, Storage, storage_options
from spark_ext.commands.serve import Certificate, Host, Insecure, Key, Port, announce, tls_of

app = typer.Typer(help="Accept events that others push.", no_args_is_help=True, pretty_exceptions_enable=False)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The inbox's name, as in job.inbox(NAME).")]
Wal = Annotated[
    Path | None,
    typer.Option(
        "--wal", metavar="DIR", help="Folder of the write-ahead log, on a local volume. Default: in the inbox."
    ),
]


@app.command("serve")
def serve(
    state: State,
    name: Name,
    gateway: Annotated[
        str, typer.Option(help="Name of this gateway. Each has its own log and continues it after a restart.")
    ],
    wal: Wal = None,
    host: Host = "127.0.0.1",
    port: Port = 0,
    token_file: Annotated[
        Path | None,
        typer.Option("--tokens", metavar="FILE", help="A token file. Default: that of the inbox, or one new token."),
    ] = None,
    certificate: Certificate = None,
    key: Key = None,
    insecure: Insecure = False,
    names: Annotated[
        list[str] | None, typer.Option("--allow-host", metavar="NAME", help="Additional host name of the gateway.")
    ] = None,
    reuse_port: Annotated[
        bool, typer.Option("--reuse-port", help="Share the port with other gateways of this machine.")
    ] = False,
    attached: Annotated[
        bool, typer.Option("--attached", hidden=True, help="Stop when standard input ends, as with the job's process.")
    ] = False,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Accept events over HTTP and WebSocket until interrupted, or until the job drains the inbox.

    SIGTERM ends it in order: further requests are answered with 503, and what was accepted is written. Run the same
    command again to continue.
    """
    for library in ("starlette", "uvicorn", "httptools", "websockets"):
        load(library, "ingest", f"inbox '{name}'")
    from spark_ext.gateway.server import GatewayServer

    server = GatewayServer(
        state,
        name,
        gateway,
        wal=None if wal is None else str(wal),
        host=host,
        port=port,
        tokens=token_file,
        tls=tls_of(certificate, key),
        insecure=insecure,
        allowed_hosts=names or (),
        shared=reuse_port,
        storage_options=storage_options(storage) or None,
    )
    asked = threading.Event()
    if attached:
        threading.Thread(target=_await_end_of_input, args=(asked,), daemon=True).start()
    before = signal.signal(signal.SIGTERM, lambda *_: asked.set())
    try:
        with server:
            gc.freeze()  # what was loaded stays: looking for garbage in it takes a tenth of the time of each request
            gc.set_threshold(50_000)
            sys.setswitchinterval(0.001)  # s; a request does not wait for 5 ms while a segment is made
            announce(server, "accepting events", as_json)
            if server.run(asked) and not as_json:
                output.print_text("the inbox is drained")
    except KeyboardInterrupt:
        raise typer.Exit from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _await_end_of_input(asked: threading.Event) -> None:
    sys.stdin.read()
    asked.set()


@app.command("seal")
def seal(
    state: State,
    name: Name,
    gateway: Annotated[str, typer.Argument(metavar="GATEWAY", help="Name of the gateway.")],
    wal: Wal = None,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Seal it without its volume: what was only there is lost.")
    ] = False,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """End the log of a gateway that does not run any more, so that a job that drains the inbox can finish.

    What its write-ahead log still has is saved first.
    """
    from spark_ext.gateway.inbox import Inbox

    found = Inbox(state, name, gateway, None if wal is None else str(wal), storage_options(storage) or None)
    sealed = found.seal(accept_loss=accept_loss)
    if as_json:
        output.print_json({"gateway": gateway, "events": sealed.total, "lost_after": sealed.lost_after})
        return
    output.print_text(f"gateway '{gateway}' of inbox '{name}' is sealed, with {sealed.total} events")
    if sealed.lost_after is not None:
        output.print_text(f"events that it acknowledged after sequence {sealed.lost_after} are lost")


app.command("connect")(connect)
