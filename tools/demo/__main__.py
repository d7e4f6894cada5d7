"""`python -m mooncask.tools.demo`."""

import typer

from mooncask.tools.demo.command import demo

if __name__ == "__main__":
    typer.run(demo)
