"""What the Conductor refuses or can't do, as its clients see it. Part of the tree in `errors/__init__.py`."""

import errno as _errno

from mooncask.errors.base import MooncaskError


class Overloaded(MooncaskError):
    """Rejected early: accepted, this request would miss its service level."""

    code, http_status, errno, exit_code = "rate_limit_exceeded", 429, _errno.EAGAIN, 75

    def __init__(self, reason: str, retry_after_seconds: float) -> None:
        super().__init__(f"the service is at its limit ({reason}); try again in {max(1, round(retry_after_seconds))} s")
        self.reason, self.retry_after_seconds = reason, retry_after_seconds


class TokenQuotaExceeded(MooncaskError):
    code, http_status, errno, exit_code = "insufficient_quota", 429, _errno.EDQUOT, 77

    def __init__(self, tenant: str, what: str, limit: int, retry_after_seconds: float) -> None:
        again = (
            f"try again in {max(1, round(retry_after_seconds))} s" if retry_after_seconds else "ask for a larger one"
        )
        super().__init__(f"tenant {tenant} has used its quota of {limit} {what}; {again}")
        self.tenant, self.what, self.limit, self.retry_after_seconds = tenant, what, limit, retry_after_seconds


class NoSuchModel(MooncaskError):
    code, http_status, errno, exit_code = "model_not_found", 404, _errno.ENOENT, 3

    def __init__(self, model: str, known: str) -> None:
        super().__init__(f"no worker serves model {model}; there is {known or 'none at all'}")
        self.model, self.known = model, known


class NoSuchWorker(MooncaskError):
    code, http_status, errno, exit_code = "worker_not_found", 404, _errno.ENOENT, 3

    def __init__(self, worker: str, known: str) -> None:
        super().__init__(f"there is no worker {worker}; there is {known or 'none at all'}")
        self.worker, self.known = worker, known


class NoSuchRequest(MooncaskError):
    """Of the last ones, which the Conductor remembers."""

    code, http_status, errno, exit_code = "request_not_found", 404, _errno.ENOENT, 3

    def __init__(self, request: str) -> None:
        super().__init__(
            f"no request {request} is remembered; its name is the id in its answer, and the last ones are kept"
        )
        self.request = request


class ConductorUnavailable(MooncaskError):
    code, http_status, errno, exit_code = "ConductorUnavailable", 503, _errno.ENOTCONN, 69

    def __init__(self, address: str, why: str) -> None:
        super().__init__(f'no Conductor at {address}: {why}; start one with "mooncask conductor"')
        self.address, self.why = address, why


class NoWorkers(MooncaskError):
    """A pool has nobody in it, or nobody who answers."""

    code, http_status, errno, exit_code = "service_unavailable", 503, _errno.EAGAIN, 69

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}; try again when workers are there")
        self.what = what


class ContextTooLong(MooncaskError):
    code, http_status, errno, exit_code = "context_length_exceeded", 400, _errno.EINVAL, 65

    def __init__(self, prompt_tokens: int, answer_tokens: int, limit: int) -> None:
        asked = f"{prompt_tokens} tokens" + (f" and {answer_tokens} for the answer" if answer_tokens else "")
        super().__init__(f"{asked}; this model has {limit} positions: shorten the messages, or lower max_tokens")
        self.prompt_tokens, self.answer_tokens, self.limit = prompt_tokens, answer_tokens, limit


class AnswerBroken(MooncaskError):
    """An answer that had begun can't be finished as it was begun."""

    code, http_status, errno, exit_code = "server_error", 500, _errno.EIO, 74

    def __init__(self, request: str, why: str) -> None:
        super().__init__(f"request {request} could not be finished: {why}; send it again")
        self.request, self.why = request, why


class BadField(MooncaskError):
    """One field of a request's body."""

    code, http_status, errno, exit_code = "invalid_value", 400, _errno.EINVAL, 64

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field}: {why}")
        self.field, self.why = field, why


class NoSuchCache(MooncaskError):
    """Also another tenant's: that it is there at all is not told."""

    code, http_status, errno, exit_code = "cache_not_found", 404, _errno.ENOENT, 3

    def __init__(self, cache: str, why: str = "") -> None:
        again = "create it with POST /v1/caching, or leave it out: the messages are enough"
        super().__init__(f"there is no cache {cache}{f' ({why})' if why else ''}; {again}")
        self.cache, self.why = cache, why


class StateUnavailable(MooncaskError):
    """The store of caches and metering does not answer."""

    code, http_status, errno, exit_code = "service_unavailable", 503, _errno.EIO, 69

    def __init__(self, where: str, why: str) -> None:
        super().__init__(f"the Conductor's state at {where}: {why}; try again when it is there")
        self.where, self.why = where, why
