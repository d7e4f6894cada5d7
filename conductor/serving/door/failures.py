"""Errors in OpenAI's form: a status, and a body that says what is wrong and what to change."""

import logging
import math

from aiohttp import web

from mooncask.errors import (
    AccessDenied,
    BadField,
    Busy,
    ContextTooLong,
    MooncaskError,
    NoSuchModel,
    NoWorkers,
    Overloaded,
    TokenQuotaExceeded,
)

log = logging.getLogger(__name__)


def failure_body(error: Exception) -> dict[str, dict[str, str | None]]:
    """The `error` object; what is our own fault tells no details."""
    if not isinstance(error, MooncaskError):
        return _body("the Conductor failed; its log says why", "server_error", "internal_error")
    return _body(error.message, _type(error), error.code, _field(error))


def failure_response(error: Exception, request_id: str) -> web.Response:
    """With what a client needs to try again: when."""
    status = error.http_status if isinstance(error, MooncaskError) else 500
    if isinstance(error, AccessDenied):
        status = 401
    if status >= 500:
        log.error("request %s: %s", request_id, error)
    headers = {"x-request-id": request_id}
    if isinstance(error, Overloaded | TokenQuotaExceeded) and error.retry_after_seconds:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_seconds)))
    elif isinstance(error, NoWorkers | Busy):
        headers["Retry-After"] = "1"
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return web.json_response(failure_body(error), status=status, headers=headers)


def plain_failure(status: int, message: str, code: str, request_id: str) -> web.Response:
    """For what no class of the tree stands for: an unknown path, a body over the limit."""
    return web.json_response(
        _body(message, "invalid_request_error", code), status=status, headers={"x-request-id": request_id}
    )


def _body(message: str, kind: str, code: str, field: str | None = None) -> dict[str, dict[str, str | None]]:
    return {"error": {"message": message, "type": kind, "param": field, "code": code}}


def _type(error: MooncaskError) -> str:
    if isinstance(error, AccessDenied):
        return "authentication_error"
    if error.http_status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if error.http_status < 500 else "server_error"


def _field(error: MooncaskError) -> str | None:
    if isinstance(error, BadField):
        return error.field
    if isinstance(error, ContextTooLong):
        return "messages"
    return "model" if isinstance(error, NoSuchModel) else None
