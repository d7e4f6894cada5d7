"""The policies and service levels of each class of requests. Classes are ranked: under rising load the lowest is rejected
first. Not here: which class a request belongs to."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from mooncask.conductor.models.cost import DecodeModel
from mooncask.conductor.scheduling.admission import ADMISSIONS, Threshold, make_admission
from mooncask.conductor.scheduling.decision import Policies
from mooncask.conductor.scheduling.facts import Slo
from mooncask.conductor.scheduling.pause import PauseSettings
from mooncask.conductor.scheduling.placement import Placement, make_placement
from mooncask.conductor.serving.dispatch.costs import FETCH_BYTES_PER_SECOND
from mooncask.errors import BadArgument


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """By the names of `scheduling/`; `classes` from the lowest to the highest with their levels."""

    placement: str
    admission: str
    threshold: float
    balancing_threshold: float
    classes: Mapping[str, Slo]
    default_class: str
    nodes_share: bool = True
    """A node's daemon brings what other nodes hold by itself."""
    fetch_bytes_per_second: float = FETCH_BYTES_PER_SECOND
    """What is reckoned with until workers have told."""
    pause: PauseSettings = field(default_factory=PauseSettings)


class PolicyTable:
    """Made once; raises BadArgument for names that no policy has."""

    def __init__(self, settings: PolicySettings) -> None:
        self.settings = settings
        self._ranks = {name: rank for rank, name in enumerate(settings.classes)}
        self._placement: Placement = make_placement(settings.placement, random.Random(), settings.balancing_threshold)
        self._made: dict[tuple[str, int], Policies] = {}
        if settings.admission not in ADMISSIONS:
            raise BadArgument("admission", repr(settings.admission), f"one of {', '.join(ADMISSIONS)}")

    @property
    def classes(self) -> list[str]:
        return list(self._ranks)

    def slo(self, service_class: str) -> Slo:
        return self.settings.classes[self._known(service_class)]

    def rank(self, service_class: str) -> int:
        """0 is the lowest."""
        return self._ranks[self._known(service_class)]

    def policies(self, service_class: str, model: DecodeModel) -> Policies:
        """With that class's service level. The placement policy is one for all.

        When its prefill has begun decode is looked at once more by those who have not seen who comes: the baseline, and `early`,
        which lets all in that arrive while the pool is still empty.
        """
        name = self._known(service_class)
        found = self._made.get((name, id(model)))
        if found is None:
            limit = Threshold(self.settings.threshold, len(self._ranks))
            again = self.settings.admission == "early"
            admission = make_admission(self.settings.admission, self.slo(name), model, 0.0, limit, recheck=again)
            found = self._made[name, id(model)] = Policies(self._placement, admission, model)
        return found

    def _known(self, service_class: str) -> str:
        return service_class if service_class in self._ranks else self.settings.default_class
