"""What is asked of an object beside its bytes: GetObjectAttributes, GetObjectAcl, GetObjectTagging."""

from email.utils import formatdate

from aiohttp import web

from mooncask.daemon.http.callers.caller import caller_of
from mooncask.daemon.http.s3.buckets import XML
from mooncask.daemon.http.s3.target import block_key, key_text
from mooncask.daemon.http.s3.xml import acl_document, attributes_document, tagging_document
from mooncask.daemon.objects.attributes import ObjectInfo
from mooncask.daemon.service import Service
from mooncask.errors import BadParameter, NoSuchBlock
from mooncask.tiers.namespace import Namespace

ATTRIBUTES = frozenset({"ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize"})
_HEADER = "x-amz-object-attributes"


class ObjectFacts:
    """One for all requests."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def attributes(self, request: web.Request, namespace: Namespace, raw_key: bytes) -> web.StreamResponse:
        """Raises NoSuchBlock, BadParameter."""
        text = ",".join(request.headers.getall(_HEADER, []))
        wanted = frozenset(name.strip() for name in text.split(","))
        if not wanted <= ATTRIBUTES:
            raise BadParameter(_HEADER, text, f"some of {', '.join(sorted(ATTRIBUTES))}")
        info = self._info(namespace, raw_key)
        headers = {"Last-Modified": formatdate(int(info.modified_seconds), usegmt=True)}
        return web.Response(body=attributes_document(info, wanted), content_type=XML, headers=headers)

    async def acl(self, request: web.Request, namespace: Namespace, raw_key: bytes) -> web.StreamResponse:
        """Raises NoSuchBlock."""
        self._info(namespace, raw_key)
        return web.Response(body=acl_document(caller_of(request).tenant), content_type=XML)

    async def tagging(self, request: web.Request, namespace: Namespace, raw_key: bytes) -> web.StreamResponse:
        """Raises NoSuchBlock."""
        self._info(namespace, raw_key)
        return web.Response(body=tagging_document(), content_type=XML)

    def _info(self, namespace: Namespace, raw_key: bytes) -> ObjectInfo:
        key = block_key(namespace, raw_key)
        info = self._service.objects.info(namespace, key)
        if info is None:
            raise NoSuchBlock(namespace.spec.name, key_text(namespace, key))
        return info
