"""`mooncask why --request`: one request's way through a Conductor, in words. The Conductor's pages know it; this asks and tells."""

import http.client
import time
from urllib.parse import quote, urlsplit

import msgspec

from mooncask.conductor.serving.dispatch.history import Candidate, Decision
from mooncask.conductor.serving.pages.rows import RequestPage
from mooncask.errors import AccessDenied, BadRequest, ConductorUnavailable, NoSuchRequest
from mooncask.tools.output import counted

DEADLINE_SECONDS = 10.0
ANSWER_BYTES_MAX = 16 << 20


def ask_conductor(url: str, request: str, token: str) -> RequestPage:
    """Raises ConductorUnavailable, NoSuchRequest, AccessDenied, BadRequest."""
    address = urlsplit(url if "//" in url else f"http://{url}")
    if address.scheme not in ("http", "https") or not address.hostname:
        raise BadRequest(f"--conductor {url}: must be a URL such as http://127.0.0.1:9475")
    kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
    connection = kind(address.hostname, address.port, timeout=DEADLINE_SECONDS)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        connection.request("GET", f"/-/v1/requests/{quote(request, safe='')}", headers=headers)
        answer = connection.getresponse()
        body = answer.read(ANSWER_BYTES_MAX)
    except (OSError, http.client.HTTPException) as exc:
        raise ConductorUnavailable(url, getattr(exc, "strerror", "") or str(exc)) from exc
    finally:
        connection.close()
    return _read(url, request, answer.status, body)


def _read(url: str, request: str, status: int, body: bytes) -> RequestPage:
    if status == 404:
        raise NoSuchRequest(request)
    if status in (401, 403):
        raise AccessDenied("this Conductor's pages need its admin token: give --token")
    if status != 200:
        raise ConductorUnavailable(url, f"it answered with status {status}")
    try:
        return msgspec.json.decode(body, type=RequestPage)
    except msgspec.DecodeError as exc:
        raise ConductorUnavailable(url, f"what answers there is no Conductor of this version: {exc}") from exc


def story(page: RequestPage) -> list[str]:
    """What happened to it, in the order in which it did."""
    told = page.request
    lines = [_head(told), _matched(told)]
    lines += _candidates(told, page.placement)
    if told.rejected:
        return [*lines, _rejected(page)]
    lines += [_choice(told, page.placement)] if told.decode_worker else []
    lines += [f"attempt {number} failed: {why}" for number, why in enumerate(told.failures, 1)]
    return [*lines, _outcome(page)]


def _head(told: Decision) -> str:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(told.at))
    of_class = f", class {told.service_class}" if told.service_class else ""
    return (
        f"{told.id}: model {told.model}, tenant {told.tenant or 'default'}{of_class}, {at}; a prompt of"
        f" {counted(told.prompt_tokens, 'token')}, at most {told.max_tokens:,} to answer"
    )


def _matched(told: Decision) -> str:
    share = f" ({told.matched_tokens / told.prompt_tokens:.0%})" if told.prompt_tokens else ""
    return f"in store: {told.matched_tokens:,} of {told.prompt_tokens:,} tokens{share} on the node that had most of it"


def _candidates(told: Decision, placement: str) -> list[str]:
    if not told.candidates:
        return []
    lines = [f"{'decode' if told.inline else 'prefill'} workers that were looked at, policy {placement}:"]
    chosen = told.decode_worker if told.inline else told.prefill_worker
    for one in sorted(told.candidates, key=lambda one: one.ttft_seconds):
        mark = "->" if one.worker == chosen else "  "
        brought = f", {one.brought_tokens:,} brought from another node" if one.brought_tokens else ""
        node = f" on {one.node}" if one.node else ""
        lines.append(
            f"  {mark} {one.worker}{node}: queue {one.queue_seconds:.3f} s, {one.held_tokens:,} tokens held{brought},"
            f" first token in {one.ttft_seconds:.3f} s"
        )
    return lines


def _choice(told: Decision, placement: str) -> str:
    if told.inline:
        missing = told.prompt_tokens - told.matched_tokens
        return f"no prefill: {told.decode_worker} computes the {missing:,} missing tokens itself"
    return f"prefill on {told.prefill_worker}: {_because(told, placement)}; decode on {told.decode_worker}"


def _because(told: Decision, placement: str) -> str:
    """Why that worker, as far as the figures say."""
    chosen = next((one for one in told.candidates if one.worker == told.prefill_worker), None)
    if chosen is None or len(told.candidates) == 1:
        return "there was no other"
    if placement == "random":
        return "drawn by lot"
    if placement == "load-balancing":
        return "the shortest queue"
    if chosen.ttft_seconds <= _least(told.candidates):
        return "the earliest first token"
    return f"the earliest first token ({told.predicted_ttft:.3f} s) with the longest prefix fetched from its holder"


def _least(candidates: list[Candidate]) -> float:
    return min(one.ttft_seconds for one in candidates)


def _rejected(page: RequestPage) -> str:
    told, level = page.request, page.service_level
    return (
        f"rejected, admission {page.admission}: {told.rejected}; its class allows {level.ttft_seconds:g} s to the first"
        f" token and {level.tbt_seconds:g} s between tokens; told to try again in {told.retry_after_seconds:.0f} s"
    )


def _outcome(page: RequestPage) -> str:
    told = page.request
    predicted = f"predicted {told.predicted_ttft:.3f} s, level {page.service_level.ttft_seconds:g} s"
    first = f"first token after {told.ttft:.3f} s ({predicted})" if told.ttft else f"no token yet ({predicted})"
    if told.paused_seconds:
        first += f"; decode beside its prefill stood still for {told.paused_seconds:.3f} s"
    if not told.ended:
        return f"{first}; it is still running"
    loaded = f"; decode loaded {told.cached_tokens:,} tokens of the prompt" if told.cached_tokens else ""
    return (
        f"{first}; ended by {told.ended} after {told.seconds:.3f} s with {counted(told.output_tokens, 'token')}{loaded}"
    )
