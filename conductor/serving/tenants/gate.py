"""The gate of a Conductor by its configuration: from a request's headers to who asks and how it is served; token quotas.

Not here: what is billed (`billing/`), and how much load the workers can take (`dispatch/`).
"""

import hmac
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mooncask.conductor.serving.config import Config, TenancySection, TenantSection, told_or_read
from mooncask.conductor.serving.door.gate import CallUsage, Identity
from mooncask.conductor.serving.tenants.classes import HEADER, ClassTable
from mooncask.conductor.serving.tenants.keys import Key, KeyRing
from mooncask.conductor.serving.tenants.public_prompts import PublicPrompts
from mooncask.conductor.serving.tenants.quotas import Limits
from mooncask.conductor.serving.tenants.shared_quotas import SharedQuotas
from mooncask.errors import ConfigError, TokenQuotaExceeded

DEFAULT_TENANT = "default"
"""Everybody's, where there are no keys."""
SALT_SECRET_CHARACTERS_MIN = 16
NOT_BEGUN = ("rejected", "failed")
"""Outcomes for which a client is not charged, if not a token was made."""


@dataclass(slots=True)
class TenantGate:
    """A `door.gate.Gate`. `block_tokens(model)` is 0 while no worker of it has a store. Belongs to the event loop's thread."""

    keys: KeyRing
    classes: ClassTable
    tenants: Mapping[str, TenantSection]
    salt_secret: bytes
    public: PublicPrompts
    block_tokens: Callable[[str], int]
    quotas: SharedQuotas
    clock: Callable[[], float] = time.time
    refusals: Counter[str] = field(default_factory=Counter)
    """Requests that were refused for a quota, by tenant."""
    _salts: dict[str, str] = field(default_factory=dict)

    def identify(self, headers: Mapping[str, str]) -> Identity:
        """Raises AccessDenied for a key that is not known, BadField for a class that is not there or too high."""
        wanted = headers.get(HEADER, "")
        if not len(self.keys):
            standing = self.classes.standing(self.classes.highest, wanted or self.classes.lowest)
            return Identity(DEFAULT_TENANT, standing.service_class, standing.priority)
        key = self.keys.find(headers.get("Authorization", ""))
        standing = self.classes.standing(key.service_class or self.classes.lowest, wanted, key.priority)
        return Identity(key.tenant, standing.service_class, standing.priority, self._salt(key))

    def public_tokens(self, identity: Identity, model: str, tokens: list[int]) -> int:
        section = self.tenants.get(identity.tenant)
        block_tokens = self.block_tokens(model)
        if not block_tokens or (section is not None and not section.public_prompts):
            return 0
        return self.public.tokens(model, tokens, block_tokens)

    async def admit(self, identity: Identity, tokens: int) -> None:
        """Raises TokenQuotaExceeded."""
        try:
            await self.quotas.admit(identity.tenant, tokens, self.clock())
        except TokenQuotaExceeded:
            self.refusals[identity.tenant] += 1
            raise

    def record(self, identity: Identity, usage: CallUsage) -> None:
        """Gives back what was booked and not used."""
        unused = usage.answer_tokens_max - usage.output_tokens
        if usage.outcome in NOT_BEGUN and not usage.output_tokens:
            unused += usage.prompt_tokens
        self.quotas.give_back(identity.tenant, unused, usage.at)

    def _salt(self, key: Key) -> str:
        salt = self._salts.get(key.tenant)
        if salt is None:
            salt = self._salts[key.tenant] = tenant_salt(self.salt_secret, key.tenant)
        return salt


def tenant_salt(secret: bytes, tenant: str) -> str:
    """What keeps a tenant's KV apart: nobody makes it who does not know the secret."""
    return hmac.digest(secret, b"mooncask tenant\0" + tenant.encode(), "sha256").hex()


def limits_of(tenants: Mapping[str, TenantSection]) -> dict[str, Limits]:
    return {name: Limits(section.tokens_per_minute, section.tokens_per_day) for name, section in tenants.items()}


def make_gate(
    config: Config, public: PublicPrompts, block_tokens: Callable[[str], int], quotas: SharedQuotas
) -> TenantGate:
    """Raises ConfigError."""
    classes = ClassTable({name: section.priority for name, section in config.classes_or_default().items()})
    for name, section in config.keys.items():
        if section.service_class and section.service_class not in classes:
            known = ", ".join(config.classes_or_default())
            raise ConfigError(f"keys.{name}.class", repr(section.service_class), f"must be one of {known}")
    known_tenants = {section.tenant for section in config.keys.values()} or {DEFAULT_TENANT}
    for name in config.tenants:
        if name not in known_tenants:
            raise ConfigError(f"tenants.{name}", "", f"has no key; there is {', '.join(sorted(known_tenants))}")
    secret = _salt_secret(config.tenancy, bool(config.keys))
    return TenantGate(KeyRing(config.keys), classes, config.tenants, secret, public, block_tokens, quotas)


def _salt_secret(section: TenancySection, needed: bool) -> bytes:
    secret = told_or_read(section.salt_secret, section.salt_secret_file, "tenancy.salt_secret_file")
    if needed and len(secret) < SALT_SECRET_CHARACTERS_MIN:
        raise ConfigError(
            "tenancy.salt_secret",
            "(not shown)",
            f"keys need a secret of {SALT_SECRET_CHARACTERS_MIN} characters or more, which tenants' salts are made with",
        )
    return secret.encode()
