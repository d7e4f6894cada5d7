"""From a request to the operation that answers it: whose bucket it is, what the caller may do, and who carries it out.

Which operation a request is: `s3/target.py` and `s3/operations.py`. Who the caller is: `callers/caller.py`. What an operation does is the
business of the modules that it is handed to.
"""

from collections.abc import Awaitable, Callable, Mapping

from aiohttp import hdrs, web

from mooncask.daemon.http.callers.caller import Caller, caller_of
from mooncask.daemon.http.measuring import OPERATION
from mooncask.daemon.http.refused import Refused
from mooncask.daemon.http.s3.buckets import Buckets
from mooncask.daemon.http.s3.copy_source import COPY_SOURCE
from mooncask.daemon.http.s3.copying import Copying
from mooncask.daemon.http.s3.multi_delete import MultiDelete
from mooncask.daemon.http.s3.object_facts import ObjectFacts
from mooncask.daemon.http.s3.objects import Objects
from mooncask.daemon.http.s3.operations import WRITES, Operation
from mooncask.daemon.http.s3.target import NotAnOperation, Target, bucket_of_host, parse_target
from mooncask.daemon.http.s3.unsupported import unsupported_header
from mooncask.daemon.http.s3.uploads import UploadOperations
from mooncask.daemon.peers.by_name import ByName
from mooncask.daemon.service import Service
from mooncask.errors import AccessDenied
from mooncask.tiers.namespace import Namespace

InBucket = Callable[[web.Request, Namespace], Awaitable[web.StreamResponse]]
OnObject = Callable[[web.Request, Namespace, bytes], Awaitable[web.StreamResponse]]

EXPECTED_OWNER = "x-amz-expected-bucket-owner"
_NO_NAMES: frozenset[str] = frozenset()


FIND_SECONDS = 1.0
"""What other nodes may take to say what a namespace is that is not known here."""


class Dispatch:
    """One for all requests; holds no state of any."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._by_name = ByName(service, FIND_SECONDS)
        self._buckets = Buckets(service)
        objects, copying, facts = Objects(service), Copying(service), ObjectFacts(service)
        uploads = UploadOperations(service)
        self._in_bucket: Mapping[Operation, InBucket] = {
            Operation.HEAD_BUCKET: self._buckets.head,
            Operation.DELETE_BUCKET: self._buckets.delete,
            Operation.GET_BUCKET_LOCATION: self._buckets.location,
            Operation.GET_BUCKET_VERSIONING: self._buckets.versioning,
            Operation.GET_BUCKET_ACL: self._buckets.acl,
            Operation.LIST_OBJECTS: self._buckets.list_objects,
            Operation.LIST_OBJECTS_V2: self._buckets.list_objects_v2,
            Operation.DELETE_OBJECTS: MultiDelete(service).delete_many,
            Operation.LIST_UPLOADS: uploads.list_uploads,
        }
        self._on_object: Mapping[Operation, OnObject] = {
            Operation.PUT_OBJECT: objects.put,
            Operation.GET_OBJECT: objects.get,
            Operation.HEAD_OBJECT: objects.head,
            Operation.DELETE_OBJECT: objects.delete,
            Operation.COPY_OBJECT: copying.copy_object,
            Operation.UPLOAD_PART_COPY: copying.copy_part,
            Operation.CREATE_UPLOAD: uploads.create,
            Operation.UPLOAD_PART: uploads.upload_part,
            Operation.COMPLETE_UPLOAD: uploads.complete,
            Operation.ABORT_UPLOAD: uploads.abort,
            Operation.LIST_PARTS: uploads.list_parts,
            Operation.GET_OBJECT_ATTRIBUTES: facts.attributes,
            Operation.GET_OBJECT_ACL: facts.acl,
            Operation.GET_OBJECT_TAGGING: facts.tagging,
        }

    def is_virtual_hosted(self, request: web.Request) -> bool:
        """Whether the Host header names a bucket: then every path is a key, also one that starts with "/-/"."""
        domain = self._service.config.http.domain
        return bool(domain) and bool(bucket_of_host(request.headers.get(hdrs.HOST, ""), domain))

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Raises Refused and errors of mooncask.errors."""
        target = self._target(request)
        request[OPERATION] = target.operation.value
        caller = caller_of(request)
        if target.operation in WRITES:
            if not caller.may_write:
                raise AccessDenied(f"{caller.name} may read only; {target.operation.value} writes")
            refused = unsupported_header(request.headers)
            if refused:
                raise Refused(501, "NotImplemented", f"this API does not have what {refused} asks for")
        if target.operation is Operation.LIST_BUCKETS:
            return await self._buckets.list_buckets(request, caller.tenant)
        if target.operation is Operation.CREATE_BUCKET:
            return await self._buckets.create(request, caller, target.bucket)
        return await self._in(request, target, caller)

    async def _in(self, request: web.Request, target: Target, caller: Caller) -> web.StreamResponse:
        if target.operation in (Operation.GET_OBJECT, Operation.HEAD_OBJECT):
            namespace = await self._by_name.find(caller.tenant, target.bucket)
        else:
            namespace = self._service.door.find(caller.tenant, target.bucket)
        owner = request.headers.get(EXPECTED_OWNER)
        if owner is not None and owner != namespace.spec.tenant:
            raise AccessDenied(f"bucket {target.bucket} is not owned by {owner[:64]}")
        if request.query_string and request.query.get("versionId", "null") != "null":
            raise Refused(404, "NoSuchVersion", "there are no versions; null names the only one")
        on_object = self._on_object.get(target.operation)
        if on_object is not None:
            return await on_object(request, namespace, target.key)
        in_bucket = self._in_bucket.get(target.operation)
        if in_bucket is None:
            raise _not_implemented(target.operation.value)
        return await in_bucket(request, namespace)

    def _target(self, request: web.Request) -> Target:
        path, _, query = request.raw_path.partition("?")
        if not path.startswith("/"):
            path = _path_of_url(path)
        domain = self._service.config.http.domain
        try:
            return parse_target(
                request.method,
                path,
                request.query.keys() if query else _NO_NAMES,
                bucket_of_host(request.headers.get(hdrs.HOST, ""), domain) if domain else "",
                COPY_SOURCE in request.headers,
            )
        except NotAnOperation as error:
            if "AWSAccessKeyId" in request.query:
                raise Refused(
                    400, "InvalidRequest", "signature version 2 is not taken; use AWS4-HMAC-SHA256"
                ) from error
            raise _not_implemented(str(error)) from error


def _not_implemented(name: str) -> Refused:
    return Refused(501, "NotImplemented", f"{name} is no operation of this API; docs/S3.md lists those that are")


def _path_of_url(target: str) -> str:
    """The path of "http://host/path", as a client sends it to what it takes for a proxy."""
    _, _, rest = target.partition("://")
    return "/" + rest.partition("/")[2]
