"""ListBuckets, CreateBucket, HeadBucket, DeleteBucket and ListObjectsV2. A bucket is a namespace."""

import asyncio

from aiohttp import web

from mooncask.client import wire
from mooncask.daemon.http.listing import Lister, parse_list_request
from mooncask.daemon.http.s3_xml import buckets_document, listing_document
from mooncask.daemon.service import Service
from mooncask.errors import BadRequest
from mooncask.tiers.namespace import Namespace

XML = "application/xml"


class Buckets:
    """The operations on buckets and on the list of them, for one tenant."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def list_buckets(self, tenant: str) -> web.StreamResponse:
        return web.Response(body=buckets_document(self._service.door.owned(tenant), tenant), content_type=XML)

    async def create(self, tenant: str, name: str) -> web.StreamResponse:
        """An object namespace. Making it again is no error, as in S3's first region."""
        await self._service.door.open(tenant, wire.Open(0, name, wire.NamespaceKind.OBJECT))
        return web.Response(status=200, headers={"Location": f"/{name}"})

    async def head(self, namespace: Namespace) -> web.StreamResponse:
        return web.Response(status=200, headers={"x-mooncask-kind": namespace.spec.kind})

    async def delete(self, namespace: Namespace) -> web.StreamResponse:
        """Raises NamespaceNotEmpty."""
        await self._service.drop_namespace(namespace)
        return web.Response(status=204)

    async def list_objects(self, request: web.Request, namespace: Namespace) -> web.StreamResponse:
        encoding = request.query.get("encoding-type", "")
        if encoding not in ("", "url"):
            raise BadRequest(f'encoding-type = "{encoding[:20]}": url is the only one')
        asked = parse_list_request(request.query, hex_keys=namespace.spec.kind == "kv")
        lister = Lister(lambda *where: self._service.store.list_blocks(namespace, *where), asked)
        complete = lister.step()
        while not complete:
            await asyncio.sleep(0)  # what comes or goes meanwhile is listed or not, as in any listing of a live bucket
            complete = lister.step()
        token = request.query.get("continuation-token", "")
        document = listing_document(namespace, asked, lister.page, token, url_encoded=encoding == "url")
        return web.Response(body=document, content_type=XML)
