"""TLS between nodes: contexts from the files that the configuration names. Each side checks the other's certificate.

Host names are not compared: every certificate of cluster.tls_ca is a node's, and the handshake's proofs cover both certificates.
"""

import ssl
from dataclasses import dataclass
from pathlib import Path

from mooncask.daemon.config import ClusterSection
from mooncask.errors import ConfigError


@dataclass(frozen=True, slots=True)
class PeerTls:
    client: ssl.SSLContext
    server: ssl.SSLContext
    certificate: bytes
    """This node's own, in DER."""


def peer_tls(cluster: ClusterSection) -> PeerTls | None:
    """None without cluster.tls_certificate. Reads files. Raises ConfigError for those that cannot be used."""
    if not cluster.tls_certificate:
        return None
    client, server = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client.check_hostname = False
    for context in (client, server):
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        _load(context, cluster)
    return PeerTls(client, server, _first_certificate(cluster.tls_certificate))


def _load(context: ssl.SSLContext, cluster: ClusterSection) -> None:
    own = f'"{cluster.tls_certificate}" with "{cluster.tls_key}"'
    try:
        context.load_cert_chain(cluster.tls_certificate, cluster.tls_key, password=_refuse_password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ConfigError(
            "cluster.tls_certificate", own, f"must be a certificate and its key in PEM ({error})"
        ) from error
    try:
        context.load_verify_locations(cluster.tls_ca)
    except (OSError, ValueError) as error:
        raise ConfigError("cluster.tls_ca", f'"{cluster.tls_ca}"', f"must be certificates in PEM ({error})") from error


def _first_certificate(path: str) -> bytes:
    """In DER: what the other side sees of us."""
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    _, mark, rest = Path(path).read_text(errors="replace").partition(begin)
    return ssl.PEM_cert_to_DER_cert(mark + rest.partition(end)[0] + end)


def _refuse_password() -> str:
    """Without it OpenSSL would ask on the terminal."""
    raise ValueError("the key has a passphrase")
