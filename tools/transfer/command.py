"""`mooncask export` and `import`: a namespace to and from a tar or an S3 bucket, with progress; a second run goes on."""

import dataclasses
import importlib.metadata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from mooncask.client.listed_namespace import open_as_listed
from mooncask.client.local import LocalClient
from mooncask.client.namespace import NamespaceHandle
from mooncask.tools.connection import Json, Namespace, Socket, connected, is_kv, socket_of, the_namespace
from mooncask.tools.exit_codes import DATA, INTERRUPTED
from mooncask.tools.keys import format_size
from mooncask.tools.object_client import ObjectClient
from mooncask.tools.output import complain, counted, error_console, print_json, printable
from mooncask.tools.transfer.archive import Reader, open_reader, open_writer
from mooncask.tools.transfer.incoming import Advance, Imported, import_kv, import_objects, open_target
from mooncask.tools.transfer.manifest import Manifest
from mooncask.tools.transfer.outgoing import Exported, export_kv, export_objects

Endpoint = Annotated[
    str,
    typer.Option(
        "--endpoint-url",
        help="Of the S3 service; AWS's own by default.",
        envvar=["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"],
    ),
]


def export_command(
    namespace: Namespace,
    target: Annotated[str, typer.Argument(help='A tar file, "-" for stdout, or s3://bucket/prefix.', metavar="TARGET")],
    endpoint_url: Endpoint = "",
    socket: Socket = None,
    as_json: Json = False,
) -> None:
    """Write a namespace's blocks into a tar or an S3 bucket. Run it again to go on, or to add what came meanwhile."""
    with connected(socket) as client:
        found = the_namespace(client, namespace)
        handle = open_as_listed(client, found)
        manifest = _manifest(handle)
        with (
            open_writer(target, manifest, endpoint_url) as writer,
            _progress(f"export {namespace}", found.bytes) as advance,
            _said_when_stopped(),
        ):
            if is_kv(handle):
                result = export_kv(client, handle, writer, advance)
            else:
                with ObjectClient.beside(socket_of(socket)) as door:
                    result = export_objects(client, handle, door, writer, advance)
            writer.finish()
    _tell_export(namespace, target, result, as_json)


def import_command(
    source: Annotated[str, typer.Argument(help='A tar file, "-" for stdin, or s3://bucket/prefix.', metavar="SOURCE")],
    namespace: Annotated[
        str | None, typer.Argument(help="Where to; the exported namespace's own name by default.", metavar="[NS]")
    ] = None,
    mode: Annotated[
        str, typer.Option(help="Of a new namespace: write_through, write_back or memory; as exported by default.")
    ] = "",
    endpoint_url: Endpoint = "",
    socket: Socket = None,
    as_json: Json = False,
) -> None:
    """Read an export into a namespace, made if need be. Run it again to go on: what is here is not read again."""
    reader = open_reader(source, endpoint_url)
    try:
        with (
            connected(socket) as client,
            _progress(f"import {source}", reader.size_bytes) as advance,
            _said_when_stopped(),
        ):
            handle = open_target(client, reader.manifest, namespace or reader.manifest.namespace, mode)
            result = _import(client, handle, reader, socket, advance)
    finally:
        reader.close()
    _tell_import(source, handle.name, result, reader.finished, as_json)


def _import(
    client: LocalClient, handle: NamespaceHandle, reader: Reader, socket: str | None, advance: Advance
) -> Imported:
    if is_kv(handle):
        return import_kv(client, handle, reader, advance)
    with ObjectClient.beside(socket_of(socket)) as door:
        return import_objects(client, handle, door, reader, advance)


def _manifest(handle: NamespaceHandle) -> Manifest:
    return Manifest(
        namespace=handle.name,
        kind=handle.kind.value,
        family=dict(handle.request.family),
        shard=handle.request.shard,
        mode=handle.mode,
        hash=handle.hash,
        root=handle.opened.root.hex() if is_kv(handle) else "",
        version=importlib.metadata.version("mooncask"),
    )


# --- telling ---------------------------------------------------------------------------------------------------------


@contextmanager
def _progress(what: str, size_bytes: int) -> Iterator[Advance]:
    """A bar on stderr, where that is a terminal."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    screen = error_console()
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task(what, total=size_bytes or None)
        yield lambda size: bar.advance(task, size)


@contextmanager
def _said_when_stopped() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as stop:
        complain("stopped; what is done stays, the same command goes on from there")
        raise typer.Exit(INTERRUPTED) from stop


def _tell_export(namespace: str, target: str, result: Exported, as_json: bool) -> None:
    """On stderr when the tar is on stdout."""
    if as_json and target != "-":
        print_json({"namespace": namespace, "target": target, **dataclasses.asdict(result)})
        return
    parts = [f"{counted(result.blocks, 'block')} ({format_size(result.size_bytes)}) written"]
    if result.already:
        parts.append(f"{result.already:,} were there already")
    if result.left:
        parts.append(f"{result.left:,} left the store meanwhile")
    typer.echo(f"{printable(namespace)} -> {printable(target)}: {', '.join(parts)}", err=target == "-")


def _tell_import(source: str, namespace: str, result: Imported, finished: bool, as_json: bool) -> None:
    """Ends with exit code 65 when something of the archive is wrong or missing."""
    if as_json:
        found = {"source": source, "namespace": namespace, **dataclasses.asdict(result), "finished": finished}
        print_json(found)
    else:
        parts = [f"{counted(result.blocks, 'block')} ({format_size(result.size_bytes)}) stored"]
        if result.already:
            parts.append(f"{result.already:,} were here already")
        if result.expired:
            parts.append(f"{result.expired:,} had expired")
        typer.echo(f"{printable(source)} -> {printable(namespace)}: {', '.join(parts)}")
    if result.wrong:
        number = counted(len(result.wrong), "block")
        complain(f"{source}: the bytes of {number} are not what was exported, {result.wrong[0][:80]} first; not stored")
    if not finished:
        complain(f"{source} is unfinished: its end is missing; export again to complete it, then import again")
    if result.wrong or not finished:
        raise typer.Exit(DATA)
