"""Caches as the dashboard shows them, with what each has cost so far. Pure."""

from collections.abc import Mapping, Sequence

from mooncask.conductor.serving.billing.prices import MILLION, Prices
from mooncask.conductor.serving.caching.records import Cache
from mooncask.conductor.serving.pages.rows import CacheRow

ROWS_MAX = 200


def cache_rows(caches: Sequence[Cache], prices: Mapping[str, Prices], now: float) -> list[CacheRow]:
    """The newest ones, newest first."""
    newest = sorted(caches, key=lambda cache: -cache.created_at)[:ROWS_MAX]
    default = prices.get("default", Prices())
    return [_row(cache, prices.get(cache.model, default), now) for cache in newest]


def _row(cache: Cache, prices: Prices, now: float) -> CacheRow:
    storage = cache.tokens * cache.minutes(now) * prices.storage_minute
    return CacheRow(
        id=cache.id,
        tenant=cache.tenant,
        model=cache.model,
        status=str(cache.status),
        tokens=cache.tokens,
        expires_at=cache.expired_at,
        cost=((cache.paid_tokens or 0) * prices.creation + storage) / MILLION,
    )
