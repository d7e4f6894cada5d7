"""`python -m mooncask.tools.demo`."""

import sys

import typer

from mooncask.errors import MooncaskError
from mooncask.tools.demo.command import demo
from mooncask.tools.output import error_console

if __name__ == "__main__":
    try:
        typer.run(demo)
    except MooncaskError as error:
        error_console().print(f"mooncask: {error}", markup=False, soft_wrap=True)
        sys.exit(error.exit_code)
