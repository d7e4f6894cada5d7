"""Namespaces that only other nodes or the bucket know, opened here when somebody asks for them by name.

Engines name their family, and need none of this: it is for people, S3 tools and prefetches on a node that is new.
"""

import time
from collections import OrderedDict

from mooncask.daemon.service import Service
from mooncask.errors import NoSuchNamespace
from mooncask.tiers.namespace import Namespace

UNKNOWN_SECONDS = 2.0
"""How long nobody is asked again for a name that nobody knew."""
UNKNOWN_MAX = 1024


class ByName:
    def __init__(self, service: Service, seconds: float) -> None:
        """`seconds`: what the other nodes may take for their answer."""
        self._service = service
        self._seconds = seconds
        self._unknown: OrderedDict[tuple[str, str], float] = OrderedDict()

    async def find(self, tenant: str, name: str) -> Namespace:
        """The tenant's namespace here; else as the bucket, else as another node describes it. Raises NoSuchNamespace, AccessDenied,
        and what opening it may raise."""
        try:
            return self._service.door.find(tenant, name)
        except NoSuchNamespace:
            alone = self._service.cold is None and self._service.cluster is None
            if alone or self._unknown.get((tenant, name), 0.0) > time.monotonic():
                raise
        try:
            return await self._elsewhere(tenant, name)
        except NoSuchNamespace:
            self._unknown.pop((tenant, name), None)
            self._unknown[(tenant, name)] = time.monotonic() + UNKNOWN_SECONDS
            if len(self._unknown) > UNKNOWN_MAX:
                self._unknown.popitem(last=False)
            raise

    async def _elsewhere(self, tenant: str, name: str) -> Namespace:
        cold, cluster = self._service.cold, self._service.cluster
        if cold is not None:
            try:
                return await cold.open_namespace(tenant, name)
            except NoSuchNamespace:
                pass
        if cluster is None:
            raise NoSuchNamespace(name)
        return await cluster.specs.find(name, tenant, time.monotonic() + self._seconds)
