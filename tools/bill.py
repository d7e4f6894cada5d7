"""`mooncask bill`: what a Conductor's tenant has used and pays; `bill advise`: when caches should be created and dropped.

What is added up is `conductor/serving/billing/`; this asks the Conductor, reads logs, and shows.
"""

import http.client
import json
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode, urlsplit

import typer

from mooncask.conductor.serving.billing.advice import Period
from mooncask.conductor.serving.billing.call_log import PrefixAdvice, best_advice, read_prefixes
from mooncask.conductor.serving.billing.prices import Prices
from mooncask.errors import AccessDenied, BadRequest, ConductorUnavailable
from mooncask.tools.connection import Json
from mooncask.tools.default_command import DefaultsTo
from mooncask.tools.output import Column, console, counted, print_json, print_table

DEADLINE_SECONDS = 60.0
ANSWER_BYTES_MAX = 1 << 20
PERIODS_SHOWN = 6


class ShowsByDefault(DefaultsTo):
    """`bill --tenant A` is `bill show --tenant A`."""

    default = "show"


bill = typer.Typer(
    cls=ShowsByDefault, help="Bills of a Conductor's tenants, and when caches pay.", add_completion=False
)


@bill.command("show")
def show(
    tenant: Annotated[str, typer.Option(help="Whose bill.")] = "default",
    begin: Annotated[str, typer.Option("--from", help="A date, a date and time, or seconds since 1970.")] = "",
    end: Annotated[str, typer.Option("--to", help="The same; now, if not given.")] = "",
    conductor: Annotated[str, typer.Option(help="Where the Conductor is.")] = "http://127.0.0.1:9475",
    token: Annotated[str, typer.Option(envvar="MOONCASK_CONDUCTOR_ADMIN_TOKEN", help="Its admin token.")] = "",
    as_json: Json = False,
) -> None:
    """What a tenant has used and pays, with caching and as if there were none."""
    query = {name: value for name, value in (("tenant", tenant), ("from", begin), ("to", end)) if value}
    told = _asked(conductor, f"/-/v1/bill?{urlencode(query)}", token)
    if as_json:
        print_json(told)
        return
    currency = told["currency"]
    rows = [[what, f"{cost:.4f}"] for what, cost in told["costs"].items()]
    rows += [["total", f"{told['total']:.4f}"], ["without caching", f"{told['without_caching']:.4f}"]]
    print_table([Column("what"), Column(currency, right=True)], rows)
    console().print(
        f"{counted(told['calls'], 'call')}, {told['cache_calls']} of them by a cache; prompts of {told['prompt_tokens']} tokens,"
        f" {told['saved_tokens']} from caches and {told['automatic_tokens']} found without; {told['output_tokens']} answered"
    )


@bill.command("advise")
def advise_command(
    log: Annotated[Path, typer.Argument(help="A day's call log, or a trace of the recorder.", show_default=False)],
    input_price: Annotated[float, typer.Option("--input", help="Of a million prompt tokens.")],
    creation: Annotated[float, typer.Option(help="Of creating a million tokens.")],
    storage_minute: Annotated[float, typer.Option(help="Of a million tokens for a minute.")],
    call: Annotated[float, typer.Option(help="Of a call by a cache.")] = 0.0,
    cached: Annotated[float, typer.Option(help="Of a million prompt tokens that a cache covers.")] = 0.0,
    as_json: Json = False,
) -> None:
    """When to create, refresh and drop caches so that calls like those of the log cost least."""
    prices = Prices(input=input_price, cached=cached, creation=creation, storage_minute=storage_minute, call=call)
    prefixes, nested = read_prefixes(log)
    found = best_advice(prefixes, nested, prices)
    without = sum(len(prefix.seconds) * prefix.tokens for prefix in prefixes) * input_price / 1e6
    if as_json:
        print_json([_document(one) for one in found])
        return
    if not found:
        console().print("No prefix of this log is asked for so often that a cache would pay.")
        return
    columns = [
        Column("prefix"),
        Column("tokens", right=True),
        Column("calls", right=True),
        Column("without", right=True),
    ]
    columns += [Column("with", right=True), Column("saved", right=True), Column("hold")]
    print_table(columns, [_row(one) for one in found])
    if not nested:
        cost = without - sum(one.advice.without - one.advice.cost for one in found)
        console().print(f"All prefixes together: {without:.2f} without caches, {cost:.2f} with these.")


def _row(one: PrefixAdvice) -> list[str]:
    told = one.advice
    periods = [f"{_clock(period.begin)}-{_clock(period.end + 1)}" for period in told.periods[:PERIODS_SHOWN]]
    more = len(told.periods) - PERIODS_SHOWN
    hold = ", ".join([*periods, *([f"and {more} more"] if more > 0 else [])])
    return [
        one.name,
        str(told.tokens),
        str(told.calls),
        f"{told.without:.2f}",
        f"{told.cost:.2f}",
        f"{told.saved_share:.0%}",
        hold,
    ]


def _document(one: PrefixAdvice) -> dict[str, Any]:
    told = one.advice
    return {
        "prefix": one.name,
        "tokens": told.tokens,
        "calls": told.calls,
        "without": round(told.without, 6),
        "with": round(told.cost, 6),
        "saved_share": round(told.saved_share, 6),
        "periods": [_period(period) for period in told.periods],
    }


def _period(period: Period) -> dict[str, Any]:
    """In seconds on the log's clock."""
    return {
        "create": period.begin * 60,
        "refresh": [minute * 60 for minute in period.refreshes],
        "drop": (period.end + 1) * 60,
    }


def _clock(minute: int) -> str:
    """Of the day, where the log's clock begins at midnight (as seconds since 1970 do, in UTC)."""
    return f"{minute // 60 % 24:02}:{minute % 60:02}"


def _asked(url: str, path: str, token: str) -> dict[str, Any]:
    """Raises ConductorUnavailable, AccessDenied, BadRequest."""
    address = urlsplit(url if "//" in url else f"http://{url}")
    if address.scheme not in ("http", "https") or not address.hostname:
        raise BadRequest(f"--conductor {url}: must be a URL such as http://127.0.0.1:9475")
    kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
    connection = kind(address.hostname, address.port, timeout=DEADLINE_SECONDS)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        answer = connection.getresponse()
        body = answer.read(ANSWER_BYTES_MAX)
    except (OSError, http.client.HTTPException) as exc:
        raise ConductorUnavailable(url, getattr(exc, "strerror", "") or str(exc)) from exc
    finally:
        connection.close()
    return _read(url, answer.status, body)


def _read(url: str, status: int, body: bytes) -> dict[str, Any]:
    if status in (401, 403):
        raise AccessDenied("this Conductor's pages need its admin token: give --token")
    try:
        told = json.loads(body)
        if status == 400:
            raise BadRequest(str(told["error"]["message"]))
        if status == 200:
            return dict(told)
    except (ValueError, KeyError, TypeError) as exc:
        raise ConductorUnavailable(url, f"what answers there is no Conductor of this version: {exc}") from exc
    raise ConductorUnavailable(url, f"it answered with status {status}")
