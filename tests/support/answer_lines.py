"""The other side of `asked_process.py`: what a child does with the lines that it is sent."""

import json
import logging
import sys

log = logging.getLogger(__name__)


def answer_lines(commands: object) -> None:
    """Says that it is ready, then calls the method that each line names, until stdin ends. A fault is an answer, too."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        name, arguments = json.loads(line)
        try:
            answer = getattr(commands, name)(**arguments)
        except Exception as exc:
            log.exception("%s failed", name)
            answer = {"error": f"{type(exc).__name__}: {exc}"}
        print(json.dumps(answer), flush=True)
