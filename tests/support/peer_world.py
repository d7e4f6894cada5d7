"""Two ends of a transport: a provider of blocks in plain memory, certificates of a cluster, and a node in a process of its own."""

import asyncio
import os
import secrets
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from xxhash import xxh3_128_digest

from mooncask.daemon.config import ClusterSection, Config, NodeSection
from mooncask.daemon.transport.authentication import derive_key
from mooncask.daemon.transport.pool import Links
from mooncask.daemon.transport.served_leases import LeaseLimits
from mooncask.daemon.transport.tcp.dial import TcpDialler
from mooncask.daemon.transport.tcp.handshake import Credentials
from mooncask.daemon.transport.tcp.server import TcpServer, bind_listener, bound_address
from mooncask.daemon.transport.tcp.settings import LinkSettings, ServeSettings
from mooncask.daemon.transport.tcp.tls import peer_tls
from mooncask.daemon.transport.transport import Growing, HeldBlock, Link, NodeIdentity
from mooncask.tiers.block import Extent, TierName

NS = b"namespace-of-16b"
SECRET = "what-the-cluster-knows"
SECONDS = 20.0
TRANSPORTS = ("tcp", "tcp+tls")
"""Every implementation, by the name that `PeerInfo.transport` has."""
_SCRIPT = Path(__file__).parent / "peer_child.py"


def soon(seconds: float = SECONDS) -> float:
    return time.monotonic() + seconds


def block_bytes(number: int, size: int) -> bytes:
    """Different for every number, not compressible, the same in every process."""
    return np.random.default_rng(number).bytes(size)


def key_of(number: int, size: int) -> bytes:
    """A key that says what its block is: `MemoryProvider` makes any block that is asked for."""
    return b"%d:%d" % (number, size)


class MemoryProvider:
    """Has the block of every key of `key_of`; all others it has not. Counts what is held."""

    def __init__(self) -> None:
        self.held: Counter[bytes] = Counter()
        self.dropped = 0
        self.delay_seconds = 0.0
        self.wrong = False
        """Serve bytes that are not those of the checksum."""
        self.writing: dict[bytes, Growing] = {}
        """Blocks that are asked for as being written, and how far they are."""
        self._made: dict[bytes, bytearray] = {}

    def hold_writing(self, ns_id: bytes, keys: Sequence[bytes]) -> list[HeldBlock | None]:
        whole = [self._hold(key) if ns_id == NS and key in self.writing else None for key in keys]
        return [block and replace(block, checksum=b"", growing=self.writing[block.key]) for block in whole]

    async def hold(self, ns_id: bytes, keys: Sequence[bytes], deadline: float) -> list[HeldBlock | None]:
        if self.delay_seconds:
            await asyncio.sleep(self.delay_seconds)
        return [self._hold(key) if ns_id == NS else None for key in keys]

    def _hold(self, key: bytes) -> HeldBlock | None:
        number, _, size = key.partition(b":")
        if not size:
            return None
        if key not in self._made:
            self._made[key] = bytearray(block_bytes(int(number), int(size)))
        payload = self._made[key]
        checksum = xxh3_128_digest(b"other bytes" if self.wrong else payload)
        self.held[key] += 1
        extent = Extent(TierName.DRAM, 0, len(payload), 1, len(payload))
        return HeldBlock(key, extent, memoryview(payload), checksum, b"parent", 3, 16, b"attributes")

    def drop(self, held: HeldBlock) -> None:
        self.held[held.key] -= 1
        self.dropped += 1
        assert self.held[held.key] >= 0, "dropped twice"

    def overwrite(self, key: bytes) -> None:
        """As a store does with a place that nobody holds any more."""
        assert not self.held[key]
        self._made[key][:] = bytes(len(self._made[key]))

    @property
    def holding(self) -> int:
        return sum(self.held.values())


def write_cluster_certificates(folder: Path, node: str) -> ClusterSection:
    """PEM files for `node`, of the authority that lies in `folder` (made if need be)."""
    authority_key_path, authority_path = folder / "authority.key", folder / "authority.pem"
    if not authority_path.exists():
        key = ec.generate_private_key(ec.SECP256R1())
        _write_certificate(authority_path, "authority", key, "authority", key, is_authority=True)
        authority_key_path.write_bytes(_pem(key))
    issuer = serialization.load_pem_private_key(authority_key_path.read_bytes(), None)
    assert isinstance(issuer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate, key_path = folder / f"{node}.pem", folder / f"{node}.key"
    _write_certificate(certificate, node, key, "authority", issuer, is_authority=False)
    key_path.write_bytes(_pem(key))
    return ClusterSection(tls_certificate=str(certificate), tls_key=str(key_path), tls_ca=str(authority_path))


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write_certificate(
    path: Path,
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    *,
    is_authority: bool,
) -> None:
    now = datetime.now(UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .sign(issuer_key, hashes.SHA256())
    )
    path.write_bytes(built.public_bytes(serialization.Encoding.PEM))


def incarnation_of(name: str, epoch: int = 1) -> bytes:
    return xxh3_128_digest(name.encode())[:8] + epoch.to_bytes(8, "big")


def credentials_of(name: str, address: str, folder: Path | None, secret: str = SECRET, epoch: int = 1) -> Credentials:
    """`folder`: where the certificates lie; None: no TLS."""
    identity = NodeIdentity(name, incarnation_of(name, epoch), address)
    tls = peer_tls(write_cluster_certificates(folder, name)) if folder is not None else None
    if tls is None:
        return Credentials(identity, derive_key(secret))
    return Credentials(identity, derive_key(secret), tls.client, tls.server, tls.certificate)


SERVE = ServeSettings(LeaseLimits(1024, 1 << 30), handshake_seconds=2.0)
LINK = LinkSettings(connections=4, connect_seconds=2.0, keepalive_seconds=0.2, silence_seconds=10.0)


@dataclass
class World:
    """A serving node in this process, and as many that ask as a test wants. `folder`: see `credentials_of`."""

    folder: Path | None
    settings: LinkSettings = LINK
    provider: MemoryProvider = field(default_factory=MemoryProvider)
    pools: list[Links] = field(default_factory=list)
    servers: list[TcpServer] = field(default_factory=list)

    def serve(self, name: str = "holder", listen: str = "127.0.0.1:0", **changes: object) -> TcpServer:
        sock = bind_listener(listen)
        epoch = changes.pop("epoch", 1)
        settings = changes.pop("settings", SERVE)
        credentials = credentials_of(name, bound_address(sock), self.folder, epoch=epoch, **changes)
        server = TcpServer(sock, credentials, self.provider, settings)
        self.servers.append(server)
        return server

    def pool(self, name: str = "reader", settings: LinkSettings | None = None, **changes: object) -> Links:
        folder = changes.pop("folder", self.folder)
        credentials = credentials_of(name, "127.0.0.1:1", folder, **changes)
        pool = Links(TcpDialler(credentials, settings or self.settings).dial)
        self.pools.append(pool)
        return pool

    async def link(self, server: TcpServer | None = None, name: str = "reader") -> Link:
        """To `server`, or to one that is made for it."""
        return await self.pool(name).link((server or self.serve()).address, soon())

    async def close(self) -> None:
        for pool in self.pools:
            await pool.close()
        for server in self.servers:
            await server.close()
        assert self.provider.holding == 0, "a lease was left"


async def fetch(link: Link, keys: Sequence[bytes], seconds: float = SECONDS) -> list[bytes]:
    """Lease, read and release; checks each against its checksum."""
    blocks = [block for block in await link.lease(NS, keys, soon(seconds)) if block is not None]
    targets = [bytearray(block.size) for block in blocks]
    await link.read(blocks, [memoryview(target) for target in targets], soon(seconds))
    link.release(blocks)
    assert [xxh3_128_digest(target) for target in targets] == [block.checksum for block in blocks]
    return [bytes(target) for target in targets]


@dataclass
class Child:
    """A serving node that is another process, with a `MemoryProvider`."""

    process: asyncio.subprocess.Process
    address: str

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


@asynccontextmanager
async def serving_child(folder: Path | None, epoch: int = 1, listen: str = "127.0.0.1:0") -> AsyncIterator[Child]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(_SCRIPT),
        listen,
        str(folder or ""),
        str(epoch),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), SECONDS)
        yield Child(process, line.decode().strip())
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await asyncio.sleep(0)  # the pipes are closed by the loop's next turn


def config_of(tmp_path: Path, **cluster: object) -> Config:
    return Config(node=NodeSection(name=f"n-{secrets.token_hex(2)}"), cluster=ClusterSection(**cluster))
