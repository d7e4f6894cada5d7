"""Which namespaces other nodes may know of, by the id that is the same on all nodes: KV only, objects are a node's own."""

from mooncask.daemon.directory.directory import namespace_id
from mooncask.tiers.namespace import Namespace
from mooncask.tiers.store import Store

IDS_MAX = 8192


class SharedNamespaces:
    """Computed when asked for and remembered; one that was dropped is not found any more."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ids: dict[int, bytes] = {}
        self._by_id: dict[bytes, Namespace] = {}

    def id_of(self, namespace: Namespace) -> bytes:
        """16 bytes; empty for a namespace that stays here."""
        found = self._ids.get(namespace.id)
        if found is None:
            if len(self._ids) >= IDS_MAX:  # of namespaces that were dropped since
                self._ids.clear()
            found = namespace_id(namespace.spec) if namespace.spec.kind == "kv" else b""
            self._ids[namespace.id] = found
        return found

    def find(self, ns_id: bytes) -> Namespace | None:
        """The namespace of that id that is here now."""
        found = self._by_id.get(ns_id)
        if found is None or self._store.namespace(found.spec.name) is not found:
            self._scan()
            found = self._by_id.get(ns_id)
        return found

    def _scan(self) -> None:
        living = self._store.namespaces()
        self._ids = {namespace.id: self.id_of(namespace) for namespace in living}
        self._by_id = {self._ids[namespace.id]: namespace for namespace in living if self._ids[namespace.id]}
