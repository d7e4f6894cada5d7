"""A refusal that only S3 knows."""

from collections.abc import Mapping


class Refused(Exception):
    """A code and a status that no error of the project stands for; `answers.py` makes S3's XML of it, with `details` as
    further elements."""

    def __init__(self, status: int, code: str, message: str, details: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.details = status, code, details or {}
