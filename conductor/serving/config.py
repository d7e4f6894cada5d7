"""The Conductor's configuration: a TOML file, `MOONCASK_CONDUCTOR_<SECTION>_<KEY>` variables on top, one frozen object.

Every error is a ConfigError that names the key, what it is, and what is allowed. Durations are seconds.
"""

import ipaddress
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec.structs import replace

from mooncask.client.worker_api import PAUSE_SECONDS_MAX, Role
from mooncask.conductor.scheduling.admission import ADMISSIONS
from mooncask.conductor.scheduling.pause import PAUSES
from mooncask.conductor.scheduling.placement import PLACEMENTS
from mooncask.conductor.serving.billing.prices import Prices
from mooncask.errors import ConfigError

PREFIX = "MOONCASK_CONDUCTOR_"
SQLITE = "sqlite:///"
Positive = Annotated[float, msgspec.Meta(gt=0)]
Count = Annotated[int, msgspec.Meta(ge=1)]
NotNegative = Annotated[int, msgspec.Meta(ge=0)]


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One [section]."""


class ServerSection(Section, frozen=True):
    """Where the Conductor is reached, and by whom."""

    listen: str = "127.0.0.1:9475"
    """For clients: HOST:PORT."""
    workers_listen: str = "127.0.0.1:9476"
    """For workers, who must know the secret."""
    worker_secret: str = ""
    worker_secret_file: str = ""
    body_bytes_max: Count = 16 << 20
    client_seconds: Positive = 60.0
    """A client that sends its body, or takes its answer, more slowly than that is cut off."""
    drain_seconds: Positive = 30.0
    """At SIGTERM, for answers that are under way."""
    tokenizer_processes: Count = 1


class PolicySection(Section, frozen=True):
    """How requests are placed and admitted; the names are those of `mooncask simulate`."""

    placement: str = "kvcache-centric"
    admission: str = "predicted"
    threshold: Positive = 1.0
    balancing_threshold: Positive = 1.5
    nodes_share: bool = True
    """The nodes' daemons are one cluster: what one holds the others bring by themselves. False where they know nothing of each
    other."""
    fetch_bytes_per_second: Positive = 1e9
    """From another node, until workers have told how fast that is."""
    pause_decode: str = "never"
    """`slo`: decode stands still for a prefill on its node that would be late otherwise. Only where the workers of a node compute
    on one device or the same cores; where each has its own, nobody gains by it."""
    pause_slowdown: Annotated[float, msgspec.Meta(ge=1)] = 2.0
    """So many times longer a prefill takes beside a decoding batch, until that is learned."""
    pause_seconds_max: Annotated[float, msgspec.Meta(gt=0, le=PAUSE_SECONDS_MAX)] = 0.5
    """The longest pause at a time."""


class LimitsSection(Section, frozen=True):
    running_max: Count = 1024
    waiting_max: Count = 64
    inline_tokens: int = 64
    inline_prefill_tokens: int = 512
    hot_copies_max: Annotated[int, msgspec.Meta(ge=0)] = 2
    """Copies of hot prefixes to other prefill nodes that may be under way; 0: none are made."""
    hot_busy_share: Positive = 0.3
    """A prefix is copied when reads of it would keep a link busy for more of the time than this."""
    prefix_seconds: Positive = 0.05
    """What asking the nodes for a prefix may take."""


class ClassSection(Section, frozen=True):
    """[classes.NAME], from the lowest to the highest: the service level of its requests."""

    ttft_seconds: Positive = 30.0
    tbt_seconds: Positive = 0.2
    priority: Annotated[int, msgspec.Meta(ge=0, le=255)] = 128


class ModelSection(Section, frozen=True):
    """[models.NAME]: where its tokeniser and chat template are."""

    tokenizer: str


class KeySection(Section, frozen=True, rename={"service_class": "class"}):
    """[keys.NAME]: who has this key. One of `key`, its SHA-256 in hex, or a file with it."""

    tenant: str
    key: str = ""
    key_sha256: str = ""
    key_file: str = ""
    service_class: str = ""
    """The highest that its requests may ask for; empty: the lowest there is."""
    priority: Annotated[int, msgspec.Meta(ge=0, le=255)] | None = None
    """Instead of that of the class."""


class TenantSection(Section, frozen=True):
    """[tenants.NAME]: tokens of prompts and answers together; 0: as many as it likes."""

    tokens_per_minute: NotNegative = 0
    tokens_per_day: NotNegative = 0
    public_prompts: bool = True
    """False: its KV is apart also where a prompt begins with what is public."""


class TenancySection(Section, frozen=True):
    """What tenants' salts are made with. Another secret: nothing that is stored is found again."""

    salt_secret: str = ""
    salt_secret_file: str = ""


class PublicSection(Section, frozen=True):
    """[public.NAME]: a system prompt of `model` whose KV all tenants share. One of `text` and `file`."""

    model: str
    text: str = ""
    file: str = ""


class AdminSection(Section, frozen=True):
    """Who sees the pages under /-/: with a token who knows it; without one programs of this machine."""

    token: str = ""
    token_file: str = ""


class StateSection(Section, frozen=True):
    """Where caches, tags and metering are kept. Several Conductors at once need a server."""

    url: str = "sqlite:///conductor-state.db"
    """sqlite:///PATH (from this file's folder on, if it does not begin with /), valkey://HOST:PORT/DB, or memory:."""
    prefix: str = "mooncask-conductor"
    """Of all keys, on a server."""
    password: str = ""
    password_file: str = ""


class CachingSection(Section, frozen=True):
    """Context caching: /v1/caching."""

    enabled: bool = True
    cache_tokens: Count = 131_072
    tenant_tokens: Count = 1_000_000
    """Of all caches of a tenant together, as long as they live."""
    pin_share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.5
    """Of a node's NVMe; the node's own limits.pin_share is above it."""
    check_seconds: Positive = 2.0
    """How often nodes are asked whether they still hold what is ready."""
    lost_seconds: Positive = 10.0
    """A node that does not answer for so long has lost its caches: they are built elsewhere."""


class BillingSection(Section, frozen=True):
    """Prices are in [prices.MODEL], of models without one in [prices.default]."""

    currency: str = "USD"
    keep_days: Positive = 400.0
    """So long the metering log goes back."""


class WorkerSection(Section, frozen=True):
    """[workers.NAME]: a vLLM server with Mooncask's connector. Other workers register by themselves."""

    address: str
    """http://HOST:PORT."""
    role: Role
    model: str
    """As clients name it."""
    node: str = ""
    node_pages: str = ""
    """The daemon beside it: its node's name, and where its pages are: http://HOST:PORT or unix:PATH."""
    slots: Count = 256
    """Requests at a time: its --max-num-seqs."""
    api_key: str = ""
    api_key_file: str = ""
    kv_events: str = ""
    """Where it publishes KV events (tcp://HOST:PORT): what its own prefix cache holds counts then too."""
    may_change_role: bool = False
    """Its connector's kv_role is kv_both: it can serve as either."""
    gone_seconds: Positive = 5.0
    """After so long without an answer it is taken to be gone."""


class NodeSection(Section, frozen=True):
    """[nodes.NAME]: the `http.admin_token` that the daemon of this node demands; in [nodes.default] that of all nodes without
    a section. Empty: it demands none."""

    admin_token: str = ""
    admin_token_file: str = ""


class IndexerSection(Section, frozen=True):
    """The query API for other routers; no `listen`: there is none."""

    listen: str = ""
    token: str = ""
    token_file: str = ""
    hash_seed: NotNegative = 0
    """That of the rolling hashes which /query_by_hash is given."""
    blocks_max: Count = 1_000_000
    """Over all engines; a block takes some 300 bytes."""


class PlanSection(Section, frozen=True):
    """How many workers prefill and how many decode in each slot of the day: recommended, and with `apply` carried out."""

    apply: bool = False
    slot_seconds: Positive = 900.0
    horizon_slots: Annotated[int, msgspec.Meta(ge=1, le=96)] = 12
    warm_up_seconds: Positive = 60.0
    """What a worker that changes sides is worth nothing for."""
    record: str = ""
    """A file in which recorded load outlives the process."""
    hook_command: list[str] = []
    """Gets each recommendation as JSON on stdin, for scaling the fleet."""
    hook_url: str = ""
    """Gets it as the body of a POST."""
    hook_seconds: Positive = 10.0


class Config(Section, frozen=True):
    server: ServerSection = ServerSection()
    policy: PolicySection = PolicySection()
    limits: LimitsSection = LimitsSection()
    classes: dict[str, ClassSection] = {}
    models: dict[str, ModelSection] = {}
    workers: dict[str, WorkerSection] = {}
    nodes: dict[str, NodeSection] = {}
    keys: dict[str, KeySection] = {}
    tenants: dict[str, TenantSection] = {}
    tenancy: TenancySection = TenancySection()
    public: dict[str, PublicSection] = {}
    admin: AdminSection = AdminSection()
    indexer: IndexerSection = IndexerSection()
    plan: PlanSection = PlanSection()
    state: StateSection = StateSection()
    caching: CachingSection = CachingSection()
    billing: BillingSection = BillingSection()
    prices: dict[str, Prices] = {}

    def classes_or_default(self) -> dict[str, ClassSection]:
        return self.classes or {"default": ClassSection()}


def load_config(path: Path | None, environment: Mapping[str, str], models: Mapping[str, str] | None = None) -> Config:
    """File, then environment, then `models`: tokeniser folders by name. Raises ConfigError."""
    raw = _read(path) if path is not None else {}
    for name, folder in (models or {}).items():
        raw.setdefault("models", {})[name] = {"tokenizer": folder}
    for name, value in environment.items():
        if name.startswith(PREFIX):
            section, _, key = name.removeprefix(PREFIX).lower().partition("_")
            raw.setdefault(section, {})[key] = value
    try:
        config = msgspec.convert(raw, Config, strict=False)
    except msgspec.ValidationError as exc:
        text, _, where = str(exc).partition(" - at ")
        raise ConfigError(where.strip("`$.") or str(path), "", text) from exc
    _check(config)
    return replace(config, state=_placed(config.state, path))


def secret_of(section: ServerSection) -> str:
    """The workers' secret, from its file if it has one. Raises ConfigError."""
    return told_or_read(section.worker_secret, section.worker_secret_file, "server.worker_secret_file")


def told_or_read(told: str, file: str, key: str) -> str:
    """A secret that stands in the configuration, or in a file of its own. Raises ConfigError that names `key`."""
    if not file:
        return told
    try:
        return Path(file).read_text().strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(key, file, f"cannot be read: {exc}") from exc


def split_listen(listen: str, key: str) -> tuple[str, int]:
    """Host and port of HOST:PORT. Raises ConfigError that names `key`."""
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(key, repr(listen), 'must be HOST:PORT, such as "127.0.0.1:9475"')
    return host, int(port)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _placed(section: StateSection, path: Path | None) -> StateSection:
    """A file that is named without its folder is in that of the configuration."""
    file = section.url.removeprefix(SQLITE)
    if path is None or not section.url.startswith(SQLITE) or not file or file.startswith("/"):
        return section
    return replace(section, url=f"{SQLITE}{path.absolute().parent / file}")


def _read(path: Path) -> dict[str, dict[str, object]]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as exc:
        raise ConfigError("--config", str(path), f"cannot be read: {exc.strerror}") from exc
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError("--config", str(path), f"is no TOML: {exc}") from exc


def _check(config: Config) -> None:
    _one_of("policy.placement", config.policy.placement, PLACEMENTS)
    _one_of("policy.admission", config.policy.admission, ADMISSIONS)
    _one_of("policy.pause_decode", config.policy.pause_decode, PAUSES)
    _check_indexer(config.indexer)
    if config.plan.hook_command and config.plan.hook_url:
        raise ConfigError("plan.hook_url", config.plan.hook_url, "give either hook_command or hook_url")
    for name, worker in config.workers.items():
        if not worker.address.startswith(("http://", "https://")):
            raise ConfigError(f"workers.{name}.address", repr(worker.address), "must be http://HOST:PORT")
    host, _ = split_listen(config.server.listen, "server.listen")
    if not is_loopback(host) and not config.keys:
        raise ConfigError(
            "server.listen",
            config.server.listen,
            "another address than loopback needs keys: a [keys.NAME] for each client",
        )
    host, _ = split_listen(config.server.workers_listen, "server.workers_listen")
    if not is_loopback(host) and not secret_of(config.server):
        raise ConfigError(
            "server.workers_listen", config.server.workers_listen, "another address than loopback needs a worker_secret"
        )


def _check_indexer(section: IndexerSection) -> None:
    if not section.listen:
        return
    host, _ = split_listen(section.listen, "indexer.listen")
    if not is_loopback(host) and not told_or_read(section.token, section.token_file, "indexer.token_file"):
        raise ConfigError("indexer.listen", section.listen, "another address than loopback needs indexer.token")


def _one_of(key: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(key, repr(value), f"must be one of {', '.join(allowed)}")
