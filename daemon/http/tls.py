"""The HTTP port's TLS: a context out of the files that the configuration names, and the same files anew."""

import ssl

from mooncask.daemon.config import HttpSection
from mooncask.errors import ConfigError


def tls_context(http: HttpSection) -> ssl.SSLContext | None:
    """None without http.tls_certificate. Reads files. Raises ConfigError for files that cannot be used."""
    if not http.tls_certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    _load_certificate(context, http)
    return context


def replace_certificate(context: ssl.SSLContext, fresh: ssl.SSLContext) -> None:
    """Connections to the listener of `context` get `fresh`'s certificate from now on. Reads nothing and can't fail.

    Loading other files into a context in use could leave it with the certificate of the one and the key of the other.
    """

    def choose(connection: ssl.SSLObject, name: str | None, listener: ssl.SSLContext) -> None:
        connection.context = fresh

    context.sni_callback = choose  # OpenSSL asks it at every handshake, also of clients that name no server


def _load_certificate(context: ssl.SSLContext, http: HttpSection) -> None:
    """Raises ConfigError."""
    files = f'"{http.tls_certificate}" with "{http.tls_key}"'
    try:
        context.load_cert_chain(http.tls_certificate, http.tls_key, password=_refuse_password)
    except ssl.SSLError as error:
        why = f"must be a certificate and its key in PEM, the key without a passphrase ({error.reason or error})"
        raise ConfigError("http.tls_certificate", files, why) from error
    except OSError as error:
        raise ConfigError("http.tls_certificate", files, f"must be readable ({error.strerror})") from error
    except ValueError as error:
        raise ConfigError("http.tls_certificate", files, f"cannot be used: {error}") from error


def _refuse_password() -> str:
    """Without it OpenSSL would ask on the terminal."""
    raise ValueError("the key has a passphrase")
