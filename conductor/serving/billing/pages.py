"""GET /-/v1/bill?tenant=&from=&to=: what a tenant has used and what it costs, with caching and as if there were none."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from mooncask.conductor.serving.billing.lines import decode_line
from mooncask.conductor.serving.billing.meter import Meter
from mooncask.conductor.serving.billing.prices import Bill, Prices
from mooncask.errors import BadField

PAGE = 2000
"""Lines read at a time."""
DAYS_DEFAULT = 31


@dataclass(slots=True)
class BillPage:
    """`check(remote, headers)` raises AccessDenied for who may not see it."""

    meter: Meter
    prices: Mapping[str, Prices]
    currency: str
    check: Callable[[str, Mapping[str, str]], None]

    def add_to(self, app: web.Application) -> None:
        app.router.add_get("/-/v1/bill", self._show)

    async def _show(self, request: web.Request) -> web.StreamResponse:
        self.check(request.remote or "", request.headers)
        now = time.time()
        end = moment(request.query.get("to", ""), "to", now)
        begin = moment(request.query.get("from", ""), "from", end - DAYS_DEFAULT * 86_400)
        tenant = request.query.get("tenant", "default")
        if begin > end:
            raise BadField("from", "is behind to")
        bill = await self.bill(tenant, begin, end, now)
        return web.json_response(shown(bill, tenant, begin, end, self.currency))

    async def bill(self, tenant: str, begin: float, end: float, now: float) -> Bill:
        """With what has happened up to this moment. Raises StateUnavailable."""
        await self.meter.flush()
        await self.meter.all_storage(tenant, now)
        bill, offset, default = Bill(), 0, self.prices.get("default", Prices())
        while entries := await self.meter.state.entries(tenant, begin, end + 1e-6, offset, PAGE):
            for entry in entries:
                line = decode_line(entry.value)
                bill.add(line, self.prices.get(line.model, default))
            offset += len(entries)
        return bill


def shown(bill: Bill, tenant: str, begin: float, end: float, currency: str) -> dict[str, Any]:
    """The page's answer; `saved` may be negative: then the caches cost more than they saved."""
    return {
        "tenant": tenant,
        "from": begin,
        "to": end,
        "currency": currency,
        "calls": bill.calls,
        "calls_not_charged": bill.failed_calls,
        "cache_calls": bill.cache_calls,
        "prompt_tokens": bill.prompt_tokens,
        "saved_tokens": bill.saved_tokens,
        "automatic_tokens": bill.automatic_tokens,
        "output_tokens": bill.output_tokens,
        "creation_tokens": bill.creation_tokens,
        "storage_token_minutes": bill.storage_token_minutes,
        "costs": {what: round(cost, 6) for what, cost in sorted(bill.costs.items())},
        "total": round(bill.total, 6),
        "without_caching": round(bill.without, 6),
        "saved": round(bill.without - bill.total, 6),
    }


def moment(text: str, field: str, otherwise: float) -> float:
    """Seconds since 1970, or a date and time in ISO 8601 (UTC where it does not say). Raises BadField."""
    if not text:
        return otherwise
    try:
        return float(text)
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise BadField(field, "seconds since 1970, or a date such as 2026-11-30 or 2026-11-30T08:00") from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
