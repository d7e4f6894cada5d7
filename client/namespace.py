"""A namespace as a client holds it: over reconnects, over restarts of the daemon."""

from mooncask.client import wire
from mooncask.client.hashing import root


class NamespaceHandle:
    """An open namespace. Valid for as long as its client; the client opens it anew on each new connection."""

    __slots__ = ("hash", "opened", "request")

    def __init__(self, request: wire.Open, opened: wire.Opened) -> None:
        # Named as the daemon named it, so that a restarted daemon opens the same one.
        self.request = wire.Open(
            0, opened.name, request.kind, request.family, request.shard, request.mode, request.hash
        )
        self.opened = opened
        self.hash = request.hash

    @property
    def name(self) -> str:
        return self.opened.name

    @property
    def kind(self) -> wire.NamespaceKind:
        return self.opened.kind

    @property
    def mode(self) -> str:
        """write_through, write_back or memory."""
        return self.opened.mode

    @property
    def tenant(self) -> str:
        return self.opened.tenant

    @property
    def fingerprint(self) -> bytes:
        return self.opened.fingerprint

    def root(self, cache_salt: str | bytes = b"") -> bytes:
        """d[0] of this tenant's chains: start `hashing.chain(root, tokens, block_tokens, hash=namespace.hash)` with it."""
        extra = cache_salt.encode() if isinstance(cache_salt, str) else cache_salt
        return root(self.fingerprint, self.opened.salt + extra, self.hash) if extra else self.opened.root

    def reopening(self, id: int) -> wire.Open:
        """The request that opens it on another connection."""
        r = self.request
        return wire.Open(id, r.name, r.kind, r.family, r.shard, r.mode, r.hash)

    def __repr__(self) -> str:
        return f"NamespaceHandle({self.name!r})"
