"""Uploads in parts: what they become, what they leave, and that they outlive the daemon."""

import hashlib
import secrets
import shutil
import time
from pathlib import Path

import pytest
from child_processes import until
from local_daemon import running_daemon
from object_driver import (
    CHUNK,
    MIB,
    SETTINGS,
    body,
    get_object,
    make_bucket,
    nothing_held,
    part_keys,
    pieces_of,
    put_object,
    put_part,
    read,
)

from mooncask.daemon.objects.attributes import ObjectAttributes, PutCondition
from mooncask.daemon.objects.upload_state import PART_BYTES_MIN, WantedPart
from mooncask.errors import (
    InvalidPart,
    InvalidPartOrder,
    NoSuchUpload,
    PartTooSmall,
    PreconditionFailed,
    QuotaExceeded,
)

PARTS = [body(PART_BYTES_MIN, 1), body(PART_BYTES_MIN + 3, 2), body(100, 3)]
WHOLE = b"".join(PARTS)
ROOMY = {**SETTINGS, "dram.capacity": "64MiB"}


async def uploaded(daemon, bucket, upload) -> list[WantedPart]:  # type: ignore[no-untyped-def]
    return [
        WantedPart(number, await put_part(daemon, bucket, b"k", upload.name, number, data))
        for number, data in enumerate(PARTS, 1)
    ]


async def test_parts_become_one_object_in_one_step() -> None:
    async with running_daemon(ROOMY) as daemon:
        bucket, uploads = await make_bucket(daemon), daemon.service.objects.uploads
        upload = await uploads.create(bucket, b"k", ObjectAttributes(content_type="a/b", metadata={"m": "1"}))
        wanted = await uploaded(daemon, bucket, upload)
        assert daemon.service.objects.info(bucket, b"k") is None
        assert [part.row.size for part in uploads.list_parts(bucket, b"k", upload.name, 0, 10)] == [
            len(part) for part in PARTS
        ]
        info = await uploads.complete(bucket, b"k", upload.name, wanted)
        assert info.size == len(WHOLE) and info.attributes is not None
        assert (info.attributes.content_type, info.attributes.metadata) == ("a/b", {"m": "1"})
        assert info.etag.endswith("-3")
        assert await get_object(daemon, bucket, b"k") == WHOLE
        with await daemon.service.objects.open(bucket, b"k") as reader:
            assert reader.manifest is not None
            start, stop = reader.manifest.part_span(2) or (0, 0)
            assert await read(daemon, reader, start, stop) == PARTS[1]
        assert uploads.list_uploads(bucket) == []
        await until(lambda: len(part_keys(daemon, bucket)) == 5 + 6 + 1)
        assert await uploads.complete(bucket, b"k", upload.name, wanted) == daemon.service.objects.info(bucket, b"k")
        await nothing_held(daemon)


async def test_the_etag_is_the_md5_of_the_parts_md5s() -> None:
    async with running_daemon(ROOMY) as daemon:
        bucket, uploads = await make_bucket(daemon), daemon.service.objects.uploads
        upload = await uploads.create(bucket, b"k", ObjectAttributes())
        wanted = []
        for number, data in enumerate(PARTS, 1):
            writer = await uploads.part_writer(bucket, b"k", upload.name, number, len(data))
            for piece in pieces_of(data):
                await writer.write(piece)
            tag = hashlib.md5(data).hexdigest()
            assert (await writer.finish(tag)).row.etag == tag
            wanted.append(WantedPart(number, tag))
        info = await uploads.complete(bucket, b"k", upload.name, wanted)
        digests = b"".join(hashlib.md5(part).digest() for part in PARTS)
        assert info.etag == f"{hashlib.md5(digests).hexdigest()}-3"


async def test_a_part_that_is_uploaded_again_takes_the_place_of_the_first_only_when_it_is_whole() -> None:
    async with running_daemon(ROOMY) as daemon:
        bucket, uploads = await make_bucket(daemon), daemon.service.objects.uploads
        upload = await uploads.create(bucket, b"k", ObjectAttributes())
        tag = await put_part(daemon, bucket, b"k", upload.name, 1, body(2 * CHUNK, 1))
        broken = await uploads.part_writer(bucket, b"k", upload.name, 1, 3 * CHUNK)
        for piece in list(pieces_of(body(3 * CHUNK, 2)))[:-1]:
            await broken.write(piece)
        broken.abort()
        await until(lambda: len(part_keys(daemon, bucket)) == 2 + 2)
        assert [part.row.etag for part in uploads.list_parts(bucket, b"k", upload.name, 0, 10)] == [tag]
        newer = await put_part(daemon, bucket, b"k", upload.name, 1, body(3 * CHUNK, 3))
        await until(lambda: len(part_keys(daemon, bucket)) == 2 + 3)
        with pytest.raises(InvalidPart):
            await uploads.complete(bucket, b"k", upload.name, [WantedPart(1, tag)])
        await uploads.complete(bucket, b"k", upload.name, [WantedPart(1, newer)])
        assert await get_object(daemon, bucket, b"k") == body(3 * CHUNK, 3)


async def test_what_a_completion_may_not_ask_for() -> None:
    async with running_daemon(ROOMY) as daemon:
        bucket, uploads = await make_bucket(daemon), daemon.service.objects.uploads
        upload = await uploads.create(bucket, b"k", ObjectAttributes())
        wanted = await uploaded(daemon, bucket, upload)
        small = WantedPart(4, await put_part(daemon, bucket, b"k", upload.name, 4, b"small"))
        for parts, error in (
            ([], InvalidPart),
            ([wanted[1], wanted[0]], InvalidPartOrder),
            ([wanted[0], wanted[0]], InvalidPartOrder),
            ([WantedPart(1, "wrong")], InvalidPart),
            ([WantedPart(9, "absent")], InvalidPart),
            ([wanted[0], wanted[2], small], PartTooSmall),
        ):
            with pytest.raises(error):
                await uploads.complete(bucket, b"k", upload.name, parts)
        await put_object(daemon, bucket, b"k", b"there")
        with pytest.raises(PreconditionFailed):
            await uploads.complete(bucket, b"k", upload.name, wanted, PutCondition(if_none_match="*"))
        with pytest.raises(InvalidPart):
            await uploads.part_writer(bucket, b"k", upload.name, 10_001, 1)
        for name, key in ((upload.name, b"other"), ("zz", b"k"), (secrets.token_hex(16), b"k")):
            with pytest.raises(NoSuchUpload):
                await uploads.complete(bucket, key, name, wanted)
        await uploads.complete(bucket, b"k", upload.name, wanted[:1])
        assert await get_object(daemon, bucket, b"k") == PARTS[0]
        await until(lambda: len(part_keys(daemon, bucket)) == 5)  # parts that were not listed go
        await nothing_held(daemon)


@pytest.mark.parametrize("how", ["aborted", "too old", "bucket dropped"])
async def test_an_upload_that_ends_without_an_object_leaves_nothing(how: str) -> None:
    async with running_daemon(ROOMY) as daemon:
        bucket, uploads = await make_bucket(daemon), daemon.service.objects.uploads
        upload = await uploads.create(bucket, b"k", ObjectAttributes())
        await uploaded(daemon, bucket, upload)
        late = await uploads.part_writer(bucket, b"k", upload.name, 7, 2 * CHUNK)
        await late.write(memoryview(body(2 * CHUNK)))
        if how == "aborted":
            await uploads.abort(bucket, b"k", upload.name)
        elif how == "too old":
            await uploads.expire(time.time() + 24 * 3600 + 1)
        else:
            await daemon.service.drop_namespace(bucket)
        with pytest.raises(Exception, match=r"no upload|no block|no namespace"):
            await late.finish()
        late.abort()
        await until(lambda: not part_keys(daemon, bucket))
        assert uploads.list_uploads(bucket) == []
        await nothing_held(daemon)


async def test_parts_count_in_the_quota() -> None:
    async with running_daemon({**ROOMY, "tenants.default.uids": [], "tenants.default.quota": "6MiB"}) as daemon:
        bucket, uploads = await make_bucket(daemon), daemon.service.objects.uploads
        upload = await uploads.create(bucket, b"k", ObjectAttributes())
        await put_part(daemon, bucket, b"k", upload.name, 1, PARTS[0])
        with pytest.raises(QuotaExceeded):
            await uploads.part_writer(bucket, b"k", upload.name, 2, 2 * MIB)
        await nothing_held(daemon)


@pytest.mark.parametrize("lost", ["nothing", "index"])
async def test_an_upload_goes_on_after_a_restart(lost: str, tmp_path: Path) -> None:
    settings = {**ROOMY, "nvme.path": str(tmp_path)}
    async with running_daemon(settings) as daemon:
        bucket = await make_bucket(daemon)
        upload = await daemon.service.objects.uploads.create(bucket, b"k", ObjectAttributes(metadata={"m": "1"}))
        wanted = [
            WantedPart(number, await put_part(daemon, bucket, b"k", upload.name, number, data))
            for number, data in enumerate(PARTS[:2], 1)
        ]
    if lost == "index":
        shutil.rmtree(tmp_path / "index")
    async with running_daemon(settings) as daemon:
        bucket, uploads = await make_bucket(daemon), daemon.service.objects.uploads
        assert [(u.name, u.record.key) for u in uploads.list_uploads(bucket)] == [(upload.name, b"k")]
        await daemon.service.objects.sweeper.sweep()
        wanted.append(WantedPart(3, await put_part(daemon, bucket, b"k", upload.name, 3, PARTS[2])))
        info = await uploads.complete(bucket, b"k", upload.name, wanted)
        assert info.attributes is not None and info.attributes.metadata == {"m": "1"}
        assert await get_object(daemon, bucket, b"k") == WHOLE
    async with running_daemon(settings) as daemon:
        bucket = await make_bucket(daemon)
        assert daemon.service.objects.uploads.list_uploads(bucket) == []
        assert await get_object(daemon, bucket, b"k") == WHOLE
        await nothing_held(daemon)
