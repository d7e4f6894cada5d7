"""Options that several benches have, in the same words."""

from pathlib import Path
from typing import Annotated

import typer

JsonFile = Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.", metavar="FILE")]
ModelFolder = Annotated[
    Path | None, typer.Option("--model", help="Folder of a model; the demo's SmolLM2 by default.", metavar="DIR")
]
Quick = Annotated[bool, typer.Option(help="A small run that shows that all works; its figures say nothing.")]
