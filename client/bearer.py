"""`Authorization: Bearer TOKEN`, as every door of the project reads it. Pure."""

import hmac


def given_token(authorization: str) -> str:
    """The token of such a header; empty for anything else."""
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def bears(authorization: str, secret: str) -> bool:
    """Whether the header carries that secret; an empty one needs no header. How long it takes tells nothing about it."""
    return hmac.compare_digest(given_token(authorization).encode("utf-8", "surrogateescape"), secret.encode())
