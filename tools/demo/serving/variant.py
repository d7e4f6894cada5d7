"""Which of the Conductor's policies one run is about. A plain value."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Variant:
    """By the names of the configuration; `pause`: whether decode stands still for prefills on its node."""

    placement: str
    admission: str
    pause: str = "never"
