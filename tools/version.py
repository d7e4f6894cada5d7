"""`mooncask version`."""

import importlib.metadata

import typer

from mooncask.client.wire import PROTOCOL
from mooncask.tools.connection import Json
from mooncask.tools.output import print_json


def version(as_json: Json = False) -> None:
    """Print the version, and that of the socket protocol."""
    found = {"version": importlib.metadata.version("mooncask"), "protocol": PROTOCOL}
    if as_json:
        print_json(found)
    else:
        typer.echo(f"mooncask {found['version']}, protocol {found['protocol']}")
