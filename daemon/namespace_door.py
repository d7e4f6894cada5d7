"""Whose a namespace is: every way into one, from the socket and from HTTP, goes through here.

What a namespace may contain is the store's knowledge; who is behind a connection is the listener's.
"""

import hashlib
import re
from collections.abc import Mapping

from mooncask.client import hashing, wire
from mooncask.client.family import Family
from mooncask.daemon.config import Config
from mooncask.errors import AccessDenied, BadBucketName, BadRequest, NoSuchNamespace
from mooncask.tiers.block import WriteMode
from mooncask.tiers.namespace import Namespace, NamespaceSpec, parts_name
from mooncask.tiers.store import Store

DEFAULT_TENANT = "default"
NAMESPACES_MAX = 4096
FAMILY_BYTES_MAX = 16 << 10
SHARD_BYTES_MAX = 256
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")
_SALT_DOMAIN = b"mooncask tenant salt 1\0"


class NamespaceDoor:
    """Opens, finds and drops namespaces for tenants."""

    def __init__(self, store: Store, config: Config) -> None:
        self._store = store
        self._default_mode = config.default_mode
        self._has_nvme = bool(config.nvme.path)
        self._tenant_by_uid = tenants_by_uid(config)

    def reconfigure(self, config: Config) -> None:
        """Whose tenant a uid is may change; where new namespaces are kept does not."""
        self._tenant_by_uid = tenants_by_uid(config)

    def tenant_of(self, uid: int) -> str:
        """The tenant that a local user belongs to."""
        return self._tenant_by_uid.get(uid, DEFAULT_TENANT)

    async def open(self, tenant: str, request: wire.Open) -> Namespace:
        """The namespace, made if need be and allowed. Raises FamilyMismatch, AccessDenied, NoSuchNamespace, BadRequest."""
        spec = self._spec(tenant, request)
        existing = self._store.namespace(spec.name)
        if existing is not None:
            self.check(tenant, existing)
        elif not request.create:
            raise NoSuchNamespace(spec.name)
        elif sum(not namespace.spec.hidden for namespace in self._store.namespaces()) >= NAMESPACES_MAX:
            raise BadRequest(f"this daemon has {NAMESPACES_MAX} namespaces already; drop one first")
        return await self._store.open_namespace(spec)

    def find(self, tenant: str, name: str) -> Namespace:
        """Raises NoSuchNamespace and AccessDenied."""
        namespace = self._store.namespace(name)
        if namespace is None or namespace.spec.hidden:
            raise NoSuchNamespace(name)
        self.check(tenant, namespace)
        return namespace

    def check(self, tenant: str, namespace: Namespace) -> None:
        """On each call, whatever a handle says: is it still there, and is it the caller's? Raises as `find`."""
        if namespace.spec.tenant != tenant:
            raise AccessDenied(f"namespace {namespace.spec.name} belongs to another tenant")
        if self._store.namespace(namespace.spec.name) is not namespace:
            raise NoSuchNamespace(namespace.spec.name)

    def owned(self, tenant: str) -> list[Namespace]:
        """The tenant's namespaces by name."""
        all_of_them = self._store.namespaces()
        mine = (item for item in all_of_them if item.spec.tenant == tenant and not item.spec.hidden)
        return sorted(mine, key=lambda namespace: namespace.spec.name)

    def size_bytes(self, namespace: Namespace) -> int:
        """What a namespace holds, the parts of its long objects included."""
        parts = self._store.namespace(parts_name(namespace.spec.name))
        return namespace.stored_bytes + (parts.stored_bytes if parts is not None else 0)

    def stored_bytes(self, tenant: str) -> int:
        """Parts count as well."""
        return sum(namespace.stored_bytes for namespace in self._store.namespaces() if namespace.spec.tenant == tenant)

    def _spec(self, tenant: str, request: wire.Open) -> NamespaceSpec:
        _check_size(request)
        fingerprint = b"" if request.kind is wire.NamespaceKind.OBJECT else _fingerprint(request.family, request.hash)
        name = request.name or _derived_name(tenant, request, fingerprint)
        existing = self._store.namespace(name)
        return NamespaceSpec(
            name=check_name(name),
            kind="kv" if request.kind is wire.NamespaceKind.KV else "object",
            family=request.family,
            shard=request.shard,
            tenant=tenant,
            mode=self._mode(request.mode, existing),
            fingerprint=fingerprint,
        )

    def _mode(self, asked: str, existing: Namespace | None) -> WriteMode:
        if not asked:
            return existing.spec.mode if existing else self._default_mode
        if asked not in set(WriteMode):
            raise BadRequest(f'mode "{asked}" is unknown; write_through, write_back and memory are known')
        if asked != WriteMode.MEMORY and not self._has_nvme:
            raise BadRequest(f'mode "{asked}" needs an NVMe tier, and this daemon has none (nvme.path is empty)')
        return WriteMode(asked)


def tenants_by_uid(config: Config) -> dict[int, str]:
    return {uid: name for name, tenant in config.tenants.items() for uid in tenant.uids}


def _check_size(request: wire.Open) -> None:
    """A namespace is kept for good: what it is described by has an end."""
    size_bytes = sum(len(name.encode()) + len(value.encode()) for name, value in request.family.items())
    if size_bytes > FAMILY_BYTES_MAX:
        raise BadRequest(f"a family of {size_bytes} bytes; at most {FAMILY_BYTES_MAX} are allowed")
    if len(request.shard.encode()) > SHARD_BYTES_MAX:
        raise BadRequest(f"a shard's name has at most {SHARD_BYTES_MAX} bytes")


def check_name(name: str) -> str:
    """`name`, if a namespace (an S3 bucket) may be called so. Raises BadBucketName."""
    if not _NAME.fullmatch(name):
        raise BadBucketName(name)
    return name


def tenant_salt(tenant: str) -> bytes:
    """16 bytes that keep the tenants' chains apart; the same on every node and after every restart.

    No secret: what isolates tenants is the ownership check on each call, this is the second wall behind it.
    """
    return hashlib.sha256(_SALT_DOMAIN + tenant.encode()).digest()[:16]


def block_tokens(family: Mapping[str, str]) -> int:
    """Tokens of one block, for counting hits in tokens; 0 where the family does not say."""
    text = family.get("block_tokens", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 8 else 0


def _fingerprint(family: Mapping[str, str], hash_name: str) -> bytes:
    return Family(family).fingerprint(hash_name)


def _derived_name(tenant: str, request: wire.Open, fingerprint: bytes) -> str:
    if request.kind is wire.NamespaceKind.OBJECT:
        raise BadRequest("an object namespace needs a name")
    return hashing.namespace_name(fingerprint, request.shard, tenant)
