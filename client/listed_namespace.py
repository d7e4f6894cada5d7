"""Opens a namespace by what the daemon lists of it, for programs that look at namespaces which others made."""

from mooncask.client.family import Family
from mooncask.client.local import LocalClient
from mooncask.client.namespace import NamespaceHandle
from mooncask.client.wire import NamespaceStat
from mooncask.errors import FamilyMismatch


def open_as_listed(client: LocalClient, listed: NamespaceStat) -> NamespaceHandle:
    """Opens it with its own family. Which hash its keys are made with is not listed: only the right one opens it.

    Raises NoSuchNamespace, AccessDenied.
    """
    try:
        return _open(client, listed, "sha256")
    except FamilyMismatch as mismatch:
        if mismatch.field != "fingerprint":
            raise
        return _open(client, listed, "xxh3_128")


def _open(client: LocalClient, listed: NamespaceStat, hash: str) -> NamespaceHandle:
    family = Family(listed.family)
    return client.open_namespace(listed.name, family, listed.shard, kind=listed.kind, hash=hash, create=False)
