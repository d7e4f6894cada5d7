"""What the exit codes of `mooncask` mean, and the table of docs/CLI.md, which is made of the errors' own codes.

`python -m mooncask.tools.exit_codes docs/CLI.md` writes the table into the page; a test compares the two.
"""

import sys
from collections import defaultdict
from pathlib import Path

from mooncask.errors import error_classes

ANSWER_IS_NO = 1
"""Nothing failed, and what was asked is not so."""
USAGE = 2
DATA = 65
"""EX_DATAERR."""
OS_ERROR = 74
"""EX_IOERR: a file that was named could not be read or written."""
INTERRUPTED = 130
"""128 + SIGINT."""
PIPE = 141
"""128 + SIGPIPE."""

BEGIN, END = "<!-- exit codes: begin -->", "<!-- exit codes: end -->"

MEANINGS = {
    0: "done; `why`: every whole block of the prompt is here; `doctor`: nothing is wrong",
    1: "`why`: a block of the prompt is not here; `doctor`: something is wrong; an error of a kind this version does not know",
    2: "the command line is not understood, or an option's value cannot be used",
    3: "what was named is not there",
    64: "the request makes no sense as it is; nothing was done",
    65: "data are wrong, or do not fit what is there; also an export that is unfinished",
    69: "no daemon or worker answers",
    74: "a file cannot be read or written, or there is no room",
    75: "no answer or no room in time; try again",
    76: "the two sides speak different versions of the protocol",
    77: "not allowed: rights, quota or the limit of pins",
    78: "the daemon cannot start like this: its configuration, folder or address",
    130: "stopped by Ctrl-C",
    141: "whoever read the output went away",
}


def exit_code_table() -> str:
    """A row a code: what it means, and the errors that end with it. What a room keeps to itself is no error of the tree."""
    names = defaultdict(list)
    for name, kind in error_classes().items():
        if not name.startswith("_") and kind.__module__.startswith("mooncask.errors"):
            names[kind.exit_code].append(name)
    rows = [f"| {code} | {MEANINGS[code]} | {', '.join(sorted(names[code]))} |" for code in sorted({*MEANINGS, *names})]
    return "\n".join(["| code | meaning | errors |", "|---|---|---|", *rows])


def with_table(page: str) -> str:
    """The page with the table as it should be. Raises ValueError without the two marks."""
    before, _, rest = page.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise ValueError(f"no {BEGIN} and {END} in the page")
    return f"{before}{BEGIN}\n{exit_code_table()}\n{END}{after}"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        Path(name).write_text(with_table(Path(name).read_text()))
