"""One run of `mooncask bench http`: the S3 door beside nginx, a bare loopback connection and a plain file.

Each daemon is alone while it is measured, but for its limit, which takes turns with it.
"""

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from mooncask.client.wire import NamespaceKind
from mooncask.tools.bench.daemon_process import DaemonProcess
from mooncask.tools.bench.disk_limits import PlainFile, takes_direct_io
from mooncask.tools.bench.http_load import Load, WrongAnswer, fetch, request
from mooncask.tools.bench.http_signing import signed_headers
from mooncask.tools.bench.memory_limits import Bytes, blocks_of, private_memory
from mooncask.tools.bench.nginx import Nginx, nginx_program
from mooncask.tools.bench.plan import GIB, KIB, MIB
from mooncask.tools.bench.result import LIMIT, STORE, Fact, Findings, Measure, Skipped, beside, measured
from mooncask.tools.bench.samples import Runner, Samples, take_turns, timed

GET, NGINX_GET = "S3 get", "nginx get"
PUT_MD5, PUT_XXH3 = "S3 put, MD5 ETag", "S3 put, xxh3 ETag"
PUT_DURABLE, FILE = "S3 put, durable", "plain file write + fdatasync"
SMALL, SMALL_SIGNED, NGINX_SMALL = "S3 get of 1 KiB", "S3 get of 1 KiB, signed", "nginx get of 1 KiB"
BUCKET, DURABLE_BUCKET = "bench", "bench-durable"
KEY = "bench-key"
AHEAD = 16
"""Requests for small objects that one connection has under way."""

Message = tuple[bytes | memoryview, ...]


@dataclass(frozen=True, slots=True)
class HttpPlan:
    """Rounds are of `objects` objects, or of `small` requests; the working set is `objects`."""

    object_bytes: int
    objects: int
    small: int
    rounds: int
    disk_rounds: int
    connections: int = 8
    small_bytes: int = KIB
    judged: bool = True

    @property
    def dram_bytes(self) -> int:
        return max(256 * MIB, 4 * self.objects * self.object_bytes)

    @property
    def nvme_bytes(self) -> int:
        return max(256 * MIB, 8 * self.objects * self.object_bytes)

    @property
    def disk_bytes(self) -> int:
        """Of the data folder and of the plain file beside it."""
        return self.nvme_bytes + self.disk_rounds * self.objects * self.object_bytes


FULL = HttpPlan(object_bytes=4 * MIB, objects=64, small=20_000, rounds=9, disk_rounds=7)
QUICK = HttpPlan(object_bytes=256 * KIB, objects=8, small=200, rounds=3, disk_rounds=3, judged=False)
"""Small enough for a test; its figures say nothing."""

GET_RATIO = 1.2
DURABLE_RATIO = 0.8
GB_PER_SECOND = {PUT_MD5: 0.45, PUT_XXH3: 0.8}
PER_SECOND = {SMALL: 10_000.0, SMALL_SIGNED: 3_000.0}


def run(plan: HttpPlan, memory: Path, data: Path, progress: Callable[[str], None]) -> Findings:
    """`memory` and `data` are the run's own folders, the first on a file system in memory, the second on the disk to measure."""
    findings = Findings()
    source = private_memory(plan.objects * plan.object_bytes)
    progress("GET beside nginx")
    _measure_gets(plan, memory, source, findings)
    progress("PUT")
    _measure_puts(plan, memory, source, findings)
    progress("durable PUT")
    _measure_durable(plan, data, source, findings)
    progress("signed GET")
    _measure_signed(plan, memory, findings)
    return findings if plan.judged else findings.unjudged()


# --- GET -----------------------------------------------------------------------------------------------------------------


def _measure_gets(plan: HttpPlan, memory: Path, source: Bytes, findings: Findings) -> None:
    bodies = [block.data for block in blocks_of(source, plan.object_bytes, plan.objects, 0)]
    small = os.urandom(plan.small_bytes)
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(_daemon(plan, memory / "get", {}))
        for name, body in [*((f"o{j}", body) for j, body in enumerate(bodies)), ("small", memoryview(small))]:
            fetch(port, _put(port, BUCKET, name, body))
        runners = _getters(stack, plan, port, bodies[0], small, GET, SMALL)
        program = nginx_program()
        if program is None:
            findings.skipped.append(Skipped("nginx", "it is not installed; on Debian: apt-get install nginx-light"))
        else:
            root = _files(memory / "files", bodies, small)
            nginx = stack.enter_context(Nginx(program, memory / "nginx", root))
            runners += _getters(stack, plan, nginx.port, bodies[0], small, NGINX_GET, NGINX_SMALL)
        found = take_turns(runners, plan.rounds)
    gets = {name: _measure(plan, name, samples) for name, samples in found.items() if name in (GET, NGINX_GET)}
    if NGINX_GET in gets:
        share = beside(gets[GET], gets[NGINX_GET])
        gets[GET] = replace(share, target=f"≥ {GET_RATIO:g} of {NGINX_GET}", met=(share.ratio or 0) >= GET_RATIO)
    findings.measures += gets.values()
    findings.facts += [_rate(plan, name, samples) for name, samples in found.items() if name not in gets]


def _getters(
    stack: contextlib.ExitStack,
    plan: HttpPlan,
    port: int,
    body: memoryview,
    small_body: bytes,
    large_name: str,
    small_name: str,
) -> list[Runner]:
    """Two runners over kept connections to one server, after one answer of each kind was compared byte by byte."""
    load = stack.enter_context(contextlib.closing(Load(port, plan.connections)))
    large: list[Message] = [(_get(port, BUCKET, f"o{j}"),) for j in range(plan.objects)]
    small: list[Message] = [(_get(port, BUCKET, "small"),)] * plan.small
    large_bytes = _compared(port, large[0], body)
    small_bytes = _compared(port, small[0], small_body)
    return [_runner(load, large_name, large, large_bytes, 1), _runner(load, small_name, small, small_bytes, AHEAD)]


def _compared(port: int, message: Message, body: bytes | memoryview) -> int:
    """The length of a whole answer. Raises WrongAnswer when its body is another."""
    answer = fetch(port, message)
    if answer.body != body:
        raise WrongAnswer(f"{len(answer.body)} bytes that are not those that were put")
    return answer.size


def _files(root: Path, bodies: Sequence[memoryview], small: bytes) -> Path:
    folder = root / BUCKET
    folder.mkdir(parents=True)
    for j, body in enumerate(bodies):
        (folder / f"o{j}").write_bytes(body)
    (folder / "small").write_bytes(small)
    return root


# --- PUT -----------------------------------------------------------------------------------------------------------------


def _measure_puts(plan: HttpPlan, memory: Path, source: Bytes, findings: Findings) -> None:
    """Both ETags in turns, each with a daemon of its own; published, in memory only."""
    bodies = [block.data for block in blocks_of(source, plan.object_bytes, plan.objects, 0)]
    with contextlib.ExitStack() as stack:
        runners = []
        for name, etag in ((PUT_MD5, "md5"), (PUT_XXH3, "xxh3")):
            port = stack.enter_context(_daemon(plan, memory / etag, {"s3_etag": etag}))
            runners.append(_putter(stack, plan, port, BUCKET, bodies, name))
        found = take_turns(runners, plan.rounds)
    for name, samples in found.items():
        measure = _measure(plan, name, samples)
        wanted = GB_PER_SECOND[name]
        findings.measures.append(
            replace(measure, target=f"≥ {wanted:g} GB/s", met=(measure.gb_per_second or 0) >= wanted)
        )


def _measure_durable(plan: HttpPlan, data: Path, source: Bytes, findings: Findings) -> None:
    """The same puts, answered when they are on disk, beside a plain file and beside puts that are only published."""
    bodies = [block.data for block in blocks_of(source, plan.object_bytes, plan.objects, 0)]
    direct = takes_direct_io(data)
    if not direct:
        findings.skipped.append(Skipped("O_DIRECT", f"{data} refuses it; durable figures are those of the page cache"))
    settings = {
        "nvme_path": str(data / "nvme"),
        "nvme_capacity": str(plan.nvme_bytes),
        "nvme_segment": str(plan.nvme_bytes // 8),
        "nvme_direct": str(direct).lower(),
    }
    published = f"{PUT_MD5}, beside it"
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(_daemon(plan, data / "durable", settings))
        file = PlainFile(data / "plain.file", plan.object_bytes, plan.objects, plan.disk_rounds, 4, direct)
        stack.enter_context(file)
        runners = [
            _putter(stack, plan, port, DURABLE_BUCKET, bodies, PUT_DURABLE),
            _putter(stack, plan, port, BUCKET, bodies, published),
            file.write,
        ]
        found = take_turns(runners, plan.disk_rounds)
    measures = {name: _measure(plan, name, samples) for name, samples in found.items()}
    slower = max((measures[published], measures[FILE]), key=lambda one: one.p50_us)
    ours = beside(measures[PUT_DURABLE], slower)
    target = f"≥ {DURABLE_RATIO:g} of the slower of {published} and {FILE}"
    findings.measures.append(replace(ours, target=target, met=(ours.ratio or 0) >= DURABLE_RATIO))
    findings.measures += [replace(measures[published], system=LIMIT), measures[FILE]]


def _putter(
    stack: contextlib.ExitStack, plan: HttpPlan, port: int, bucket: str, bodies: Sequence[memoryview], name: str
) -> Runner:
    """Puts all objects under the same keys, which replaces those of the round before."""
    load = stack.enter_context(contextlib.closing(Load(port, plan.connections)))
    messages = [_put(port, bucket, f"o{j}", body) for j, body in enumerate(bodies)]
    answer = fetch(port, messages[0])
    if fetch(port, (_get(port, bucket, "o0"),)).body != bodies[0]:
        raise WrongAnswer("other bytes than those that were put came back")
    return _runner(load, name, messages, answer.size, 1)


# --- signed --------------------------------------------------------------------------------------------------------------


def _measure_signed(plan: HttpPlan, memory: Path, findings: Findings) -> None:
    """Requests for 64 objects, each signed once and sent again: the daemon checks every signature anew."""
    folder, secret = memory / "signed", secrets.token_hex(16)
    folder.mkdir()
    file = folder / "daemon.toml"
    file.touch(0o600)
    file.write_text(f'[credentials.{KEY}]\nsecret = "{secret}"\n')
    body = memoryview(os.urandom(plan.small_bytes))
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(_daemon(plan, folder, {"config": str(file)}))
        messages: list[Message] = []
        for j in range(64):
            fetch(port, (*_put(port, BUCKET, f"s{j}", body, secret),))
            messages.append((_get(port, BUCKET, f"s{j}", secret),))
        size = _compared(port, messages[0], body)
        load = stack.enter_context(contextlib.closing(Load(port, plan.connections)))
        chosen = [messages[j % len(messages)] for j in range(plan.small)]
        found = take_turns([_runner(load, SMALL_SIGNED, chosen, size, AHEAD)], plan.rounds)
    findings.facts.append(_rate(plan, SMALL_SIGNED, found[SMALL_SIGNED]))


# --- parts ---------------------------------------------------------------------------------------------------------------


@contextmanager
def _daemon(plan: HttpPlan, folder: Path, settings: Mapping[str, str]) -> Iterator[int]:
    """The port of a daemon with a bucket in memory and, where it has a disk, one that is durable."""
    folder.mkdir(exist_ok=True)
    dram = min(plan.dram_bytes, 2 * GIB)
    with DaemonProcess(folder, {"dram_capacity": str(dram), "http_listen": "127.0.0.1:0", **settings}) as daemon:
        with daemon.connect() as client:
            client.open_namespace(BUCKET, kind=NamespaceKind.OBJECT, mode="memory")
            if "nvme_path" in settings:
                client.open_namespace(DURABLE_BUCKET, kind=NamespaceKind.OBJECT, mode="write_through")
        yield daemon.http_port


def _runner(load: Load, name: str, messages: Sequence[Message], answer_bytes: int, ahead: int) -> Runner:
    def run_once(_: int) -> Mapping[str, float]:
        with timed() as watch:
            load.run(messages, answer_bytes, ahead)
        return {name: watch.seconds}

    return run_once


def _get(port: int, bucket: str, name: str, secret: str = "") -> bytes:
    host, path = f"127.0.0.1:{port}", f"/{bucket}/{name}"
    return request("GET", path, host, headers=signed_headers("GET", path, host, KEY, secret) if secret else ())


def _put(port: int, bucket: str, name: str, body: memoryview, secret: str = "") -> Message:
    host, path = f"127.0.0.1:{port}", f"/{bucket}/{name}"
    headers = signed_headers("PUT", path, host, KEY, secret) if secret else ()
    return request("PUT", path, host, len(body), headers), body


def _measure(plan: HttpPlan, name: str, samples: Samples) -> Measure:
    system = LIMIT if name in (NGINX_GET, FILE) else STORE
    return measured(system, name, samples, plan.object_bytes, plan.objects)


def _rate(plan: HttpPlan, name: str, samples: Samples) -> Fact:
    per_second = plan.small / samples.p50_seconds
    wanted = PER_SECOND.get(name)
    if wanted is None:
        return Fact(name, per_second, "requests/s")
    return Fact(name, per_second, "requests/s", f"≥ {wanted:,.0f} requests/s", per_second >= wanted)
