"""Errors on their way between processes: by class name and data where both sides are ours, by S3's code where XML is spoken."""

from mooncask.errors.base import MooncaskError

Scalar = str | int | float


def error_classes() -> dict[str, type[MooncaskError]]:
    """Every class of the tree by its name."""
    found: dict[str, type[MooncaskError]] = {}
    waiting = list(MooncaskError.__subclasses__())
    while waiting:
        cls = waiting.pop()
        found[cls.__name__] = cls
        waiting.extend(cls.__subclasses__())
    return found


def error_data(error: MooncaskError) -> dict[str, Scalar]:
    """The attributes that an error carries, for the wire."""
    return dict(vars(error))


def revive(name: str, message: str, data: dict[str, Scalar]) -> MooncaskError:
    """The error another process raised: same class, text and attributes. An unknown class becomes a plain MooncaskError."""
    cls = error_classes().get(name, MooncaskError)
    error = cls.__new__(cls)
    error.args = (message,)
    vars(error).update(data)
    return error


def revive_by_code(code: str, message: str) -> MooncaskError | None:
    """The error behind S3's <Code>, with its text and without attributes; of several classes with that code the first by name.

    None for a code that no class has.
    """
    names = sorted(name for name, cls in error_classes().items() if cls.code == code)
    return revive(names[0], message, {}) if names else None
