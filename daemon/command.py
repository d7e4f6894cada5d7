"""`python -m mooncask.daemon`: arguments, the configuration, and an exit status with one line for what goes wrong."""

import argparse
import functools
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop

from mooncask.daemon.config import Config
from mooncask.daemon.config_source import load_config
from mooncask.daemon.logs import set_up_logging
from mooncask.daemon.main import run, store_config
from mooncask.daemon.status import version
from mooncask.errors import MooncaskError

SWITCH_INTERVAL_SECONDS = 0.0005
"""How long a thread that computes under the GIL may keep the event loop waiting; Python's default is ten times that."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs until a signal; returns the exit status. A start that fails is one line on stderr."""
    options = _parser().parse_args(arguments)
    path = options.config or os.environ.get("MOONCASK_CONFIG")
    load = functools.partial(load_config, Path(path) if path else None, os.environ)
    try:
        config = load()
        if options.check_config:
            _check(config)
            print(f"mooncask: the configuration is valid: {path or 'no file, variables only'}")
            return 0
        set_up_logging(config.log)
        sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
        uvloop.run(run(config, load, path or ""))
    except MooncaskError as error:
        print(f"mooncask: {error.message}", file=sys.stderr)
        return error.exit_code
    return 0


def _check(config: Config) -> None:
    """What a start would find out before it touches anything, the files of secrets and certificates included."""
    store_config(config)
    if config.http.enabled and (config.credentials or config.http.tls_certificate):
        from mooncask.daemon.http.callers.credentials import load_credentials
        from mooncask.daemon.http.tls import tls_context

        load_credentials(config)
        tls_context(config.http)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m mooncask.daemon", description="The Mooncask daemon of one node.")
    parser.add_argument("--config", metavar="FILE", help="TOML file; MOONCASK_<SECTION>_<KEY> variables win over it")
    parser.add_argument("--check-config", action="store_true", help="only say whether the configuration is valid")
    parser.add_argument("--version", action="version", version=f"mooncask {version()}")
    return parser
