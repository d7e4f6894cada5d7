"""Logging of the daemon: to stderr, one line a record, as text or as JSON. Nothing that is logged is a secret: tokens,
salts and payloads never reach a log call."""

import json
import logging
import sys
import time

from mooncask.daemon.config import LogSection


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (RFC 3339, UTC), level, where, message, and the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """`2026-01-31 12:00:00.123 info mooncask.daemon.main: message`; a line break in a message is shown as \\n."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s", "%Y-%m-%d %H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = record.message.replace("\n", "\\n")
        record.levelname = record.levelname.lower()
        return super().formatMessage(record)


def set_up_logging(config: LogSection) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if config.json else TextFormatter())
    logging.basicConfig(level=config.level.upper(), handlers=[handler], force=True)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
