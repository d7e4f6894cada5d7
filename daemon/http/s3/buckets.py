"""The operations on buckets and on the list of them. A bucket is a namespace."""

import asyncio

from aiohttp import web

from mooncask.client import wire
from mooncask.daemon.http.bodies.body import read_document
from mooncask.daemon.http.callers.caller import Caller, caller_of
from mooncask.daemon.http.s3.listing import Lister, keys_max_of, parse_list_request
from mooncask.daemon.http.s3.xml import (
    acl_document,
    buckets_document,
    listing_document,
    location_document,
    versioning_document,
)
from mooncask.daemon.http.s3.xml_request import parse_xml
from mooncask.daemon.service import Service
from mooncask.tiers.namespace import Namespace

XML = "application/xml"
BUCKETS_MAX = 10_000
CONFIGURATION_BYTES_MAX = 64 << 10


class Buckets:
    """One for all requests."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def list_buckets(self, request: web.Request, tenant: str) -> web.StreamResponse:
        """All at once, unless max-buckets asks for less; the token is the last name. Raises BadParameter."""
        prefix, after = request.query.get("prefix", ""), request.query.get("continuation-token", "")
        most = keys_max_of(request.query, "max-buckets", BUCKETS_MAX)
        owned = [
            namespace
            for namespace in self._service.door.owned(tenant)
            if namespace.spec.name > after and namespace.spec.name.startswith(prefix)
        ]
        token = owned[most - 1].spec.name if 0 < most < len(owned) else ""
        return _xml(buckets_document(owned[:most], tenant, token, prefix))

    async def create(self, request: web.Request, caller: Caller, name: str) -> web.StreamResponse:
        """An object namespace. Making it again is no error, as in S3's first region; nor is any LocationConstraint, since
        this daemon is wherever it is said to be. Raises BadBucketName, AccessDenied, MalformedXml."""
        document = await read_document(request, caller, CONFIGURATION_BYTES_MAX, self._service.config.http)
        if document.strip():
            parse_xml(document, "CreateBucketConfiguration")
        await self._service.door.open(caller.tenant, wire.Open(0, name, wire.NamespaceKind.OBJECT))
        return web.Response(status=200, headers={"Location": f"/{name}"})

    async def head(self, request: web.Request, namespace: Namespace) -> web.StreamResponse:
        headers = {"x-mooncask-kind": namespace.spec.kind, "x-amz-bucket-region": self._region}
        return web.Response(status=200, headers=headers)

    async def delete(self, request: web.Request, namespace: Namespace) -> web.StreamResponse:
        """Raises NamespaceNotEmpty."""
        await self._service.drop_namespace(namespace)
        return web.Response(status=204)

    async def location(self, request: web.Request, namespace: Namespace) -> web.StreamResponse:
        return _xml(location_document(self._region))

    async def versioning(self, request: web.Request, namespace: Namespace) -> web.StreamResponse:
        return _xml(versioning_document())

    async def acl(self, request: web.Request, namespace: Namespace) -> web.StreamResponse:
        return _xml(acl_document(caller_of(request).tenant))

    async def list_objects(self, request: web.Request, namespace: Namespace) -> web.StreamResponse:
        return await self._list(request, namespace, version=1)

    async def list_objects_v2(self, request: web.Request, namespace: Namespace) -> web.StreamResponse:
        return await self._list(request, namespace, version=2)

    async def _list(self, request: web.Request, namespace: Namespace, version: int) -> web.StreamResponse:
        """Raises BadParameter."""
        asked = parse_list_request(request.query, namespace.spec.kind == "kv", version)
        lister = Lister(lambda *where: self._service.store.list_blocks(namespace, *where), asked)
        complete = lister.step()
        while not complete:
            await asyncio.sleep(0)  # what comes or goes meanwhile is listed or not, as in any listing of a live bucket
            complete = lister.step()
        return _xml(listing_document(namespace, asked, lister.page))

    @property
    def _region(self) -> str:
        return self._service.config.s3.region or "us-east-1"


def _xml(document: bytes) -> web.Response:
    return web.Response(body=document, content_type=XML)
