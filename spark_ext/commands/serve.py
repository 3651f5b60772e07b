"""The commands that serve jobs over HTTP, and those that make the tokens for that."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spark_ext.commands import output
from spark_ext.commands.output import Json, Storage, storage_options

if TYPE_CHECKING:
    from spark_ext.gateway.server import GatewayServer
    from spark_ext.server.endpoint import Tls
    from spark_ext.server.server import ControlServer

tokens = typer.Typer(help="Create and revoke server tokens.", no_args_is_help=True, pretty_exceptions_enable=False)

Host = Annotated[str, typer.Option(help="Address to bind to.")]
Port = Annotated[int, typer.Option(min=0, max=65_535, help="Port; 0 means any free port.")]
Certificate = Annotated[Path | None, typer.Option("--tls-cert", help="The certificate chain, PEM.")]
Key = Annotated[Path | None, typer.Option("--tls-key", help="Private key of the certificate, PEM.")]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Allow a non-loopback address without TLS: tokens are sent in the clear.")
]
TokenFile = Annotated[Path, typer.Argument(metavar="FILE", help="The token file: hashes only, mode 0600.")]


def serve(
    states: Annotated[list[str], typer.Argument(metavar="STATE...", help="State directories: paths or URIs.")],
    host: Host = "127.0.0.1",
    port: Port = 0,
    token_file: Annotated[
        Path | None,
        typer.Option("--tokens", metavar="FILE", help="A token file. Default: one new token, printed once."),
    ] = None,
    certificate: Certificate = None,
    key: Key = None,
    insecure: Insecure = False,
    names: Annotated[
        list[str] | None, typer.Option("--allow-host", metavar="NAME", help="Additional host name of the server.")
    ] = None,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Serve control events over HTTP until interrupted, whether the jobs run or not."""
    from spark_ext.server.server import ControlServer

    server = ControlServer(
        states,
        host=host,
        port=port,
        tokens=token_file,
        tls=tls_of(certificate, key),
        insecure=insecure,
        allowed_hosts=names or (),
        storage_options=storage_options(storage) or None,
    )
    asked = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: asked.set())
    try:
        with server:
            announce(server, "serving", as_json)
            while server.wait(0.2) and not asked.is_set():
                pass
    except KeyboardInterrupt:
        raise typer.Exit from None
    finally:
        signal.signal(signal.SIGTERM, before)


def tls_of(certificate: Path | None, key: Path | None) -> Tls | None:
    """The certificate of a server; both files are given, or none."""
    from spark_ext.server.endpoint import Tls

    if (certificate is None) is not (key is None):
        raise typer.BadParameter("give both --tls-cert and --tls-key", param_hint="--tls-cert")
    return None if certificate is None or key is None else Tls(str(certificate), str(key))


def announce(server: ControlServer | GatewayServer, doing: str, as_json: bool) -> None:
    """Print where a server is reached, and its token if it has made one."""
    if as_json:
        output.print_json({"url": server.url, "token": server.token}, indent=None)
        return
    output.print_text(f"{doing} at {server.url} (Ctrl-C stops it)")
    if server.token is not None:
        output.print_text(f"token, shown once: {server.token}")


@tokens.command("create")
def create(
    file: TokenFile,
    name: Annotated[str, typer.Option(help="Name of the token; recorded with each request that uses it.")],
    scope: Annotated[
        list[str] | None,
        typer.Option(help="'read', 'control' or 'ingest'; may be repeated. Default: read and control."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Create a token, add its hash to the file, and print the token once."""
    from spark_ext.server.tokens import OF_JOBS
    from spark_ext.server.tokens import create as make

    scopes = scope or OF_JOBS
    token = make(file, name, scopes)
    if as_json:
        output.print_json({"name": name, "scopes": sorted(set(scopes)), "token": token})
    else:
        typer.echo(token)


@tokens.command("revoke")
def revoke(file: TokenFile, name: Annotated[str, typer.Option(help="Whose it is.")]) -> None:
    """Remove a token: running servers refuse it from their next request on."""
    from spark_ext.server.tokens import revoke as remove

    if not remove(file, name):
        raise typer.BadParameter(f"'{file}' contains no token named '{name}'", param_hint="--name")
    output.print_text(f"revoked: {name}")


@tokens.command("list")
def listed(file: TokenFile, as_json: Json = False) -> None:
    """List the tokens of a file, with their names and scopes."""
    from spark_ext.server.tokens import read

    rows = [{"name": one.name, "scopes": sorted(one.scopes)} for one in read(file)]
    if not as_json:
        rows = [{**row, "scopes": ", ".join(row["scopes"])} for row in rows]
    output.print_rows(rows, ("name", "scopes"), as_json=as_json)
