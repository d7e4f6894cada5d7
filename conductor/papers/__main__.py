"""`python -m mooncask.conductor.papers [FOLDER] [FIGURE...]`: write docs/papers/ (or FOLDER) with all figures or some."""

import sys
from pathlib import Path

from mooncask.conductor.papers.command import write_page
from mooncask.conductor.papers.figures import FIGURES, find_figure
from mooncask.conductor.papers.traces import LocalTraces
from mooncask.errors import MooncaskError


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0]) if arguments else Path("docs") / "papers"
    try:
        names = [find_figure(name)[0] for name in arguments[1:]] or list(FIGURES)
        page = write_page(folder, LocalTraces(), names, print)
    except MooncaskError as error:
        print(error.message, file=sys.stderr)
        return error.exit_code
    print(page)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
