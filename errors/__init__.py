"""Every error that Mooncask raises, for all rooms; this room imports no other.

MooncaskError
├── missing: normal, never logged
│   ├── NoSuchBlock
│   └── NoSuchNamespace
├── temporary: try again, or go on without the store
│   ├── Busy              no room before the deadline
│   ├── DeadlineExceeded  the answer would have come too late
│   ├── DaemonUnavailable no daemon behind the socket, or it went away in mid-call
│   ├── PeerUnavailable   another node does not answer
│   │   └── PeerChanged    or has been started anew
│   ├── WorkerUnavailable an engine worker process ended or says what nobody understands
│   ├── TierDegraded      a tier is read-only after a disk fault
│   └── DeviceFault       a GPU, or its driver, failed a copy
├── corrupt: counted, quarantined, never served
│   └── CorruptBlock
├── refused: the caller's fault; nothing changed
│   ├── LengthMismatch, BlockTooLarge, EmptyBlock, DigestMismatch, QuotaExceeded, PinLimitExceeded
│   ├── FamilyMismatch, UnsupportedModel
│   ├── UnknownLease, UnknownReservation, OutOfBounds
│   ├── BadTrace          exit code 2, as for BadArgument
│   ├── BadRequest: BadBucketName, KeyTooLong, BadParameter, MalformedXml
│   ├── ProtocolMismatch, AccessDenied, NamespaceNotEmpty, NotEvictable
│   └── of objects (objects.py): PreconditionFailed, ObjectInParts, ObjectTooLarge, MetadataTooLarge, NoSuchUpload,
│       InvalidPart, InvalidPartOrder, PartTooSmall
├── of the Conductor (serving.py): Overloaded, TokenQuotaExceeded, NoSuchModel, NoWorkers, ContextTooLong, BadField,
│                                     AnswerBroken, NoSuchCache, NoSuchWorker, NoSuchRequest, ConductorUnavailable,
│                                     StateUnavailable
└── start: the process cannot begin; exit code 78 unless said otherwise
    ├── ConfigError
    │   └── BadArgument    the same on the command line; exit code 2
    └── FolderInUse, ForeignFolder, UnsupportedVersion, NoDirectIO, AddressInUse, FolderNotWritable

An error carries its data as attributes and builds its own text: what, which, what next. `code` is its name on the wire
and in S3's XML; `http_status` and `exit_code` are what the HTTP server and the command line answer, `errno` is what a file
system would.
"""

import errno as _errno

from mooncask.errors.base import MooncaskError as MooncaskError
from mooncask.errors.objects import InvalidPart as InvalidPart
from mooncask.errors.objects import InvalidPartOrder as InvalidPartOrder
from mooncask.errors.objects import MetadataTooLarge as MetadataTooLarge
from mooncask.errors.objects import NoSuchUpload as NoSuchUpload
from mooncask.errors.objects import ObjectInParts as ObjectInParts
from mooncask.errors.objects import ObjectTooLarge as ObjectTooLarge
from mooncask.errors.objects import PartTooSmall as PartTooSmall
from mooncask.errors.objects import PreconditionFailed as PreconditionFailed
from mooncask.errors.peers import PeerChanged as PeerChanged
from mooncask.errors.peers import PeerUnavailable as PeerUnavailable
from mooncask.errors.serving import AnswerBroken as AnswerBroken
from mooncask.errors.serving import BadField as BadField
from mooncask.errors.serving import ConductorUnavailable as ConductorUnavailable
from mooncask.errors.serving import ContextTooLong as ContextTooLong
from mooncask.errors.serving import NoSuchCache as NoSuchCache
from mooncask.errors.serving import NoSuchModel as NoSuchModel
from mooncask.errors.serving import NoSuchRequest as NoSuchRequest
from mooncask.errors.serving import NoSuchWorker as NoSuchWorker
from mooncask.errors.serving import NoWorkers as NoWorkers
from mooncask.errors.serving import Overloaded as Overloaded
from mooncask.errors.serving import StateUnavailable as StateUnavailable
from mooncask.errors.serving import TokenQuotaExceeded as TokenQuotaExceeded
from mooncask.errors.translation import error_classes as error_classes
from mooncask.errors.translation import error_data as error_data
from mooncask.errors.translation import revive as revive
from mooncask.errors.translation import revive_by_code as revive_by_code

# --- missing ---------------------------------------------------------------------------------------------------------


class NoSuchBlock(MooncaskError):
    code, http_status, errno, exit_code = "NoSuchKey", 404, _errno.ENOENT, 3

    def __init__(self, namespace: str, key: str) -> None:
        super().__init__(f"namespace {namespace} has no block {key}")
        self.namespace, self.key = namespace, key


class NoSuchNamespace(MooncaskError):
    code, http_status, errno, exit_code = "NoSuchBucket", 404, _errno.ENOENT, 3

    def __init__(self, namespace: str) -> None:
        super().__init__(f'no namespace {namespace}; "mooncask ls" lists those that exist')
        self.namespace = namespace


# --- temporary -------------------------------------------------------------------------------------------------------


class Busy(MooncaskError):
    code, http_status, errno, exit_code = "SlowDown", 503, _errno.EAGAIN, 75

    def __init__(self, what: str, waited_seconds: float = 0.0) -> None:
        super().__init__(f"{what} (waited {waited_seconds:.3f} s); go on without the store, or try again later")
        self.what, self.waited_seconds = what, waited_seconds


class DeadlineExceeded(MooncaskError):
    code, http_status, errno, exit_code = "RequestTimeout", 503, _errno.ETIMEDOUT, 75

    def __init__(self, what: str, deadline_seconds: float) -> None:
        super().__init__(f"{what}: no answer within {deadline_seconds:.3f} s")
        self.what, self.deadline_seconds = what, deadline_seconds


class DaemonUnavailable(MooncaskError):
    code, http_status, errno, exit_code = "ServiceUnavailable", 503, _errno.ENOTCONN, 69

    def __init__(self, address: str, why: str) -> None:
        super().__init__(f'no Mooncask daemon at {address}: {why}; start one with "mooncask serve"')
        self.address, self.why = address, why


class WorkerUnavailable(MooncaskError):
    code, http_status, errno, exit_code = "ServiceUnavailable", 503, _errno.ENOTCONN, 69

    def __init__(self, role: str, why: str) -> None:
        super().__init__(f"{role} worker: {why}; its log says more, and it can be started again")
        self.role, self.why = role, why


class TierDegraded(MooncaskError):
    code, http_status, errno, exit_code = "InsufficientCapacity", 507, _errno.EROFS, 74

    def __init__(self, tier: str, why: str) -> None:
        super().__init__(f"{tier} tier takes no writes: {why}")
        self.tier, self.why = tier, why


class DeviceFault(MooncaskError):
    code, http_status, errno, exit_code = "InternalError", 500, _errno.EIO, 74

    def __init__(self, device: str, what: str, why: str) -> None:
        super().__init__(f"{device}: {what}: {why}; the engine's log and dmesg say more")
        self.device, self.what, self.why = device, what, why


# --- corrupt ---------------------------------------------------------------------------------------------------------


class CorruptBlock(MooncaskError):
    code, http_status, errno, exit_code = "NoSuchKey", 404, _errno.EIO, 65

    def __init__(self, key: str, tier: str, why: str) -> None:
        super().__init__(
            f'block {key}: {why} in the {tier} tier; it is quarantined. "mooncask verify" checks the others'
        )
        self.key, self.tier, self.why = key, tier, why


# --- refused ---------------------------------------------------------------------------------------------------------


class LengthMismatch(MooncaskError):
    code, http_status, errno, exit_code = "LengthMismatch", 409, _errno.EINVAL, 65

    def __init__(self, key: str, have_bytes: int, got_bytes: int) -> None:
        super().__init__(
            f"block {key} is stored with {have_bytes} bytes and {got_bytes} were offered: equal keys must have equal "
            "lengths; check block_tokens and dtype of the writer"
        )
        self.key, self.have_bytes, self.got_bytes = key, have_bytes, got_bytes


class BlockTooLarge(MooncaskError):
    code, http_status, errno, exit_code = "EntityTooLarge", 413, _errno.EFBIG, 65

    def __init__(self, size_bytes: int, size_bytes_max: int) -> None:
        super().__init__(f"block of {size_bytes} bytes; at most {size_bytes_max} fit (limits.block_max)")
        self.size_bytes, self.size_bytes_max = size_bytes, size_bytes_max


class EmptyBlock(MooncaskError):
    code, http_status, errno, exit_code = "EntityTooSmall", 400, _errno.EINVAL, 65

    def __init__(self, key: str) -> None:
        super().__init__(f"block {key} is empty: a KV namespace holds no empty blocks")
        self.key = key


class DigestMismatch(MooncaskError):
    code, http_status, errno, exit_code = "BadDigest", 400, _errno.EBADMSG, 65

    def __init__(self, key: str, want: str, got: str) -> None:
        super().__init__(f"block {key}: the payload's checksum is {got}, the writer said {want}; nothing was stored")
        self.key, self.want, self.got = key, want, got


class QuotaExceeded(MooncaskError):
    code, http_status, errno, exit_code = "QuotaExceeded", 507, _errno.EDQUOT, 77

    def __init__(self, tenant: str, asked_bytes: int, quota_bytes: int) -> None:
        super().__init__(f"tenant {tenant} asked for {asked_bytes} bytes; its quota is {quota_bytes}")
        self.tenant, self.asked_bytes, self.quota_bytes = tenant, asked_bytes, quota_bytes


class PinLimitExceeded(MooncaskError):
    code, http_status, errno, exit_code = "PinLimitExceeded", 507, _errno.ENOSPC, 77

    def __init__(self, tier: str, held_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"{tier} tier: pinned, leased and reserved bytes would be {held_bytes}; at most {limit_bytes} may be"
        )
        self.tier, self.held_bytes, self.limit_bytes = tier, held_bytes, limit_bytes


class FamilyMismatch(MooncaskError):
    code, http_status, errno, exit_code = "FamilyMismatch", 409, _errno.EINVAL, 65

    def __init__(self, namespace: str, field: str, have: str, got: str) -> None:
        super().__init__(f"namespace {namespace} holds KV with {field} = {have}; this worker's is {got}")
        self.namespace, self.field, self.have, self.got = namespace, field, have, got


class UnsupportedModel(MooncaskError):
    code, http_status, errno, exit_code = "UnsupportedModel", 400, _errno.ENOTSUP, 65

    def __init__(self, model: str, why: str) -> None:
        super().__init__(f"model {model}: {why}")
        self.model, self.why = model, why


class UnknownLease(MooncaskError):
    code, http_status, errno, exit_code = "UnknownLease", 400, _errno.EBADF, 65

    def __init__(self, lease: int) -> None:
        super().__init__(f"lease {lease:#x} is not held by this process; nothing was released")
        self.lease = lease


class UnknownReservation(MooncaskError):
    code, http_status, errno, exit_code = "UnknownReservation", 400, _errno.EBADF, 65

    def __init__(self, reservation: int) -> None:
        super().__init__(f"reservation {reservation:#x} is not open on this connection; reserve again")
        self.reservation = reservation


class OutOfBounds(MooncaskError):
    code, http_status, errno, exit_code = "InvalidRange", 416, _errno.EINVAL, 65

    def __init__(self, key: str, start: int, stop: int, size_bytes: int) -> None:
        super().__init__(f"block {key} has {size_bytes} bytes; [{start}, {stop}) lies outside")
        self.key, self.start, self.stop, self.size_bytes = key, start, stop, size_bytes


class BadRequest(MooncaskError):
    code, http_status, errno, exit_code = "InvalidRequest", 400, _errno.EINVAL, 64

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class BadBucketName(BadRequest):
    code = "InvalidBucketName"

    def __init__(self, name: str) -> None:
        super().__init__(f'namespace name "{name[:80]}": 3 to 63 of a-z, 0-9, ".", "_", "-", ends a letter or digit')
        self.name = name[:80]


class KeyTooLong(BadRequest):
    code = "KeyTooLongError"

    def __init__(self, size_bytes: int, size_bytes_max: int) -> None:
        super().__init__(f"a key of {size_bytes} bytes; at most {size_bytes_max} are allowed")
        self.size_bytes, self.size_bytes_max = size_bytes, size_bytes_max


class BadParameter(BadRequest):
    code = "InvalidArgument"

    def __init__(self, name: str, value: str, allowed: str) -> None:
        super().__init__(f'{name} = "{value[:80]}": {allowed}')
        self.name, self.value, self.allowed = name, value[:80], allowed


class MalformedXml(BadRequest):
    code = "MalformedXML"

    def __init__(self, why: str) -> None:
        super().__init__(f"the request's body is not the XML that this operation takes: {why}")
        self.why = why


class BadTrace(MooncaskError):
    code, http_status, errno, exit_code = "InvalidRequest", 400, _errno.EINVAL, 2

    def __init__(self, file: str, line: int, field: str, why: str) -> None:
        where = f"{file}:{line}" if line else file
        super().__init__(f"{where}: field {field}: {why}" if field else f"{where}: {why}")
        self.file, self.line, self.field, self.why = file, line, field, why


class ProtocolMismatch(MooncaskError):
    code, http_status, errno, exit_code = "ProtocolMismatch", 400, _errno.EPROTO, 76

    def __init__(self, ours: int, theirs: int) -> None:
        super().__init__(f"this side speaks protocol {ours}, the other {theirs}; upgrade the older one")
        self.ours, self.theirs = ours, theirs


class AccessDenied(MooncaskError):
    code, http_status, errno, exit_code = "AccessDenied", 403, _errno.EACCES, 77

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class NamespaceNotEmpty(MooncaskError):
    code, http_status, errno, exit_code = "BucketNotEmpty", 409, _errno.ENOTEMPTY, 65

    def __init__(self, namespace: str, blocks: int) -> None:
        having = f"{blocks} block" if blocks == 1 else f"{blocks} blocks"
        super().__init__(
            f'namespace {namespace} still has {having}; "mooncask namespaces drop {namespace} --with-blocks" deletes all'
        )
        self.namespace, self.blocks = namespace, blocks


class NotEvictable(MooncaskError):
    code, http_status, errno, exit_code = "InsufficientCapacity", 507, _errno.ENOSPC, 74

    def __init__(self, where: str, size_bytes: int) -> None:
        super().__init__(f"no room for {size_bytes} bytes in {where}: all it holds is pinned, in use, or not evictable")
        self.where, self.size_bytes = where, size_bytes


# --- start -----------------------------------------------------------------------------------------------------------


class ConfigError(MooncaskError):
    code, http_status, errno, exit_code = "ConfigError", 500, _errno.EINVAL, 78

    def __init__(self, key: str, value: str, allowed: str) -> None:
        super().__init__(f"{key} = {value}: {allowed}")
        self.key, self.value, self.allowed = key, value, allowed


class BadArgument(ConfigError):
    code, exit_code = "InvalidArgument", 2


class FolderInUse(MooncaskError):
    code, http_status, errno, exit_code = "FolderInUse", 500, _errno.EBUSY, 78

    def __init__(self, folder: str, owner: str) -> None:
        super().__init__(f"data folder {folder} is in use by {owner}; stop it, or choose another nvme.path")
        self.folder, self.owner = folder, owner


class ForeignFolder(MooncaskError):
    code, http_status, errno, exit_code = "ForeignFolder", 500, _errno.EINVAL, 78

    def __init__(self, folder: str, found: str) -> None:
        super().__init__(f"{folder} is not a Mooncask data folder: it holds {found}; choose an empty one")
        self.folder, self.found = folder, found


class UnsupportedVersion(MooncaskError):
    code, http_status, errno, exit_code = "UnsupportedVersion", 500, _errno.EINVAL, 78

    def __init__(self, folder: str, version: str, known: str) -> None:
        super().__init__(f"data folder {folder} has format {version}; this version reads {known}")
        self.folder, self.version, self.known = folder, version, known


class NoDirectIO(MooncaskError):
    code, http_status, errno, exit_code = "NoDirectIO", 500, _errno.EINVAL, 78

    def __init__(self, folder: str, file_system: str) -> None:
        super().__init__(
            f"{folder} ({file_system}) refuses O_DIRECT; put nvme.path on another file system, or set nvme.direct = false"
        )
        self.folder, self.file_system = folder, file_system


class AddressInUse(MooncaskError):
    code, http_status, errno, exit_code = "AddressInUse", 500, _errno.EADDRINUSE, 78

    def __init__(self, setting: str, address: str) -> None:
        super().__init__(f"{setting} = {address} is in use by another process; stop it, or choose another")
        self.setting, self.address = setting, address


class FolderNotWritable(MooncaskError):
    code, http_status, errno, exit_code = "FolderNotWritable", 500, _errno.EACCES, 78

    def __init__(self, setting: str, folder: str, why: str) -> None:
        super().__init__(f"{setting} = {folder} cannot be written: {why}")
        self.setting, self.folder, self.why = setting, folder, why
