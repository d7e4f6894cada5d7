"""Which class a request is of: that of its key, or a lower one that it asks for. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from mooncask.errors import BadField

HEADER = "X-Mooncask-Class"


@dataclass(frozen=True, slots=True)
class Standing:
    """How a request is served: its class and its priority, 0 to 255."""

    service_class: str
    priority: int


class ClassTable:
    """`priorities` by class name, from the lowest class to the highest; not empty."""

    def __init__(self, priorities: Mapping[str, int]) -> None:
        self._priorities = dict(priorities)
        self._names = list(priorities)

    def __contains__(self, name: str) -> bool:
        return name in self._priorities

    @property
    def highest(self) -> str:
        return self._names[-1]

    @property
    def lowest(self) -> str:
        return self._names[0]

    def standing(self, allowed: str, wanted: str, priority: int | None = None) -> Standing:
        """Of a request that may be of class `allowed` and asks for `wanted`, if for any. `priority`: the key's own.

        Raises BadField for a class that is not there, or is higher than allowed.
        """
        name = wanted or allowed
        may = self._names[: self._names.index(allowed) + 1]
        if name not in self._priorities:
            raise BadField(HEADER, f"there is no class {name[:64]!r}; there is {', '.join(may)}")
        if name not in may:
            raise BadField(HEADER, f"this key's requests are {allowed} at most; it may ask for {', '.join(may)}")
        own = self._priorities[name]
        if priority is None:
            return Standing(name, own)
        return Standing(name, priority if name == allowed else min(priority, own))
