"""Objects of any length, without HTTP: what is put is got, whole or not at all, and nothing is left of what is gone."""

import asyncio
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

from mooncask.client import wire
from mooncask.daemon.objects.attributes import ObjectAttributes, PutCondition
from mooncask.daemon.objects.filling import put_small
from mooncask.errors import (
    BadRequest,
    MetadataTooLarge,
    NoSuchBlock,
    NotEvictable,
    PreconditionFailed,
    QuotaExceeded,
)
from mooncask.tiers.block import TierName

SIZES = [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 17]
ABSENT = PutCondition(if_none_match="*")


@pytest.mark.parametrize("size", SIZES)
async def test_an_object_of_any_length_is_read_back_byte_for_byte(size: int, tmp_path: Path) -> None:
    async with running_daemon({**SETTINGS, "nvme.path": str(tmp_path)}) as daemon:
        bucket = await make_bucket(daemon)
        data = body(size)
        info = await put_object(daemon, bucket, b"k", data, ObjectAttributes(etag="tag", content_type="text/plain"))
        assert (info.size, info.etag) == (size, "tag")
        assert await get_object(daemon, bucket, b"k") == data
        found = daemon.service.objects.info(bucket, b"k")
        assert found is not None and found.attributes is not None
        assert (found.size, found.attributes.content_type) == (size, "text/plain")
        assert len(part_keys(daemon, bucket)) == (0 if size <= CHUNK else -(-size // CHUNK))
        assert bucket.blocks == 1, "parts are in no listing"
        await nothing_held(daemon)


@pytest.mark.parametrize(
    ("start", "stop"), [(0, 1), (CHUNK - 1, CHUNK + 1), (CHUNK, 2 * CHUNK), (5, 3 * CHUNK + 4), (7, 7)]
)
async def test_any_range_of_a_long_object_is_read(start: int, stop: int) -> None:
    async with running_daemon(SETTINGS) as daemon:
        bucket = await make_bucket(daemon)
        data = body(3 * CHUNK + 17)
        await put_object(daemon, bucket, b"k", data)
        assert await get_object(daemon, bucket, b"k", start, stop) == data[start:stop]
        await nothing_held(daemon)


async def test_an_object_without_an_etag_gets_one_that_no_client_takes_for_md5() -> None:
    async with running_daemon(SETTINGS) as daemon:
        bucket = await make_bucket(daemon)
        for size in (10, 2 * CHUNK):
            tags = {(await put_object(daemon, bucket, key, body(size))).etag for key in (b"a", b"b")}
            assert len(tags) == 1 and "-" in tags.pop(), "equal bytes have equal tags"


async def test_nothing_is_visible_before_the_end_and_an_aborted_object_leaves_nothing() -> None:
    async with running_daemon(SETTINGS) as daemon:
        bucket = await make_bucket(daemon)
        objects = daemon.service.objects
        for size in (CHUNK, 4 * CHUNK):
            writer = await objects.writer(bucket, b"k", size)
            for piece in list(pieces_of(body(size)))[:-1]:
                await writer.write(piece)
            assert objects.info(bucket, b"k") is None
            with pytest.raises(BadRequest):
                await writer.finish()
            writer.abort()
            await until(lambda: not part_keys(daemon, bucket))
            assert objects.info(bucket, b"k") is None
            await nothing_held(daemon)


async def test_the_parts_of_what_was_replaced_or_deleted_go() -> None:
    async with running_daemon(SETTINGS) as daemon:
        bucket = await make_bucket(daemon)
        await put_object(daemon, bucket, b"k", body(3 * CHUNK))
        await put_object(daemon, bucket, b"k", body(2 * CHUNK, seed=2))
        await until(lambda: len(part_keys(daemon, bucket)) == 2)
        assert await get_object(daemon, bucket, b"k") == body(2 * CHUNK, seed=2)
        assert await daemon.service.objects.delete(bucket, [b"k", b"absent"]) == 1
        await until(lambda: not part_keys(daemon, bucket))
        with pytest.raises(NoSuchBlock):
            await daemon.service.objects.open(bucket, b"k")
        await nothing_held(daemon)


@pytest.mark.parametrize("how", ["replaced", "deleted"])
async def test_a_reader_keeps_the_version_that_it_opened(how: str, tmp_path: Path) -> None:
    async with running_daemon({**SETTINGS, "dram.capacity": "8MiB", "nvme.path": str(tmp_path)}) as daemon:
        bucket = await make_bucket(daemon)
        old, new = body(9 * CHUNK), body(9 * CHUNK, seed=2)
        await put_object(daemon, bucket, b"k", old)
        reader = await daemon.service.objects.open(bucket, b"k")
        if how == "replaced":
            await put_object(daemon, bucket, b"k", new)
        else:
            await daemon.service.objects.delete(bucket, [b"k"])
        await daemon.service.objects.sweeper.sweep()
        assert await read(daemon, reader) == old
        left = 9 if how == "replaced" else 0
        await until(lambda: len(part_keys(daemon, bucket)) == left)
        await nothing_held(daemon)


async def test_of_writers_that_race_for_an_absent_key_exactly_one_wins() -> None:
    async with running_daemon(SETTINGS) as daemon:
        bucket = await make_bucket(daemon)
        sizes = [100, 2 * CHUNK, 200, 3 * CHUNK]
        writers = [await daemon.service.objects.writer(bucket, b"k", size, ABSENT) for size in sizes]

        async def finish(index: int) -> bool:
            try:
                for piece in pieces_of(body(sizes[index], seed=index)):
                    await writers[index].write(piece)
                await writers[index].finish()
            except PreconditionFailed:
                return False
            finally:
                writers[index].abort()
            return True

        won = await asyncio.gather(*map(finish, range(len(sizes))))
        assert sum(won) == 1
        winner = won.index(True)
        assert await get_object(daemon, bucket, b"k") == body(sizes[winner], seed=winner)
        await until(lambda: len(part_keys(daemon, bucket)) == [0, 2, 0, 3][winner])


async def test_a_condition_on_the_etag_is_held_against_what_is_there() -> None:
    async with running_daemon(SETTINGS) as daemon:
        bucket = await make_bucket(daemon)
        await put_object(daemon, bucket, b"k", b"one", ObjectAttributes(etag="one"))
        for condition in (ABSENT, PutCondition(if_match='"two"'), PutCondition(if_none_match='"one"')):
            with pytest.raises(PreconditionFailed):
                await put_object(daemon, bucket, b"k", b"new", condition=condition)
        with pytest.raises(NoSuchBlock):
            await put_object(daemon, bucket, b"absent", b"new", condition=PutCondition(if_match="*"))
        await put_object(daemon, bucket, b"k", b"two", condition=PutCondition(if_match='"zero", "one"'))
        assert await get_object(daemon, bucket, b"k") == b"two"


async def test_parts_count_in_the_quota_and_in_the_buckets_size() -> None:
    settings = {**SETTINGS, "tenants.default.uids": [], "tenants.default.quota": "4MiB"}
    async with running_daemon(settings) as daemon:
        bucket = await make_bucket(daemon)
        await put_object(daemon, bucket, b"k", body(3 * CHUNK))
        assert 3 * CHUNK <= daemon.service.door.size_bytes(bucket) < 3 * CHUNK + 1000
        with pytest.raises(QuotaExceeded):
            await daemon.service.objects.writer(bucket, b"l", 2 * CHUNK)
        await daemon.service.objects.delete(bucket, [b"k"])
        await until(lambda: daemon.service.door.stored_bytes("default") == 0)
        await put_object(daemon, bucket, b"l", body(2 * CHUNK))


async def test_what_can_never_fit_is_refused_before_it_is_received(tmp_path: Path) -> None:
    async with running_daemon({**SETTINGS, "nvme.path": str(tmp_path), "nvme.capacity": "100MiB"}) as daemon:
        bucket = await make_bucket(daemon)
        with pytest.raises(NotEvictable):
            await daemon.service.objects.writer(bucket, b"k", 200 * CHUNK)
        await nothing_held(daemon)


async def test_metadata_has_a_limit() -> None:
    async with running_daemon(SETTINGS) as daemon:
        bucket = await make_bucket(daemon)
        await put_object(daemon, bucket, b"k" * 1024, b"x", ObjectAttributes(metadata={"a": "b" * 2047}))
        with pytest.raises(MetadataTooLarge):
            await put_object(daemon, bucket, b"k", b"x", ObjectAttributes(metadata={"a": "b" * 2048}))
        assert daemon.service.objects.info(bucket, b"k") is None
        await nothing_held(daemon)


async def test_a_long_object_that_expires_takes_its_parts_along() -> None:
    async with running_daemon(SETTINGS) as daemon:
        bucket = await make_bucket(daemon)
        await put_object(daemon, bucket, b"k", body(2 * CHUNK))
        await daemon.store.set_ttl(bucket, b"k", 0.05)
        await until(lambda: not part_keys(daemon, bucket))
        assert daemon.service.objects.info(bucket, b"k") is None


async def test_an_object_that_lost_a_part_is_not_half_served() -> None:
    async with running_daemon(SETTINGS) as daemon:
        bucket = await make_bucket(daemon)
        await put_object(daemon, bucket, b"k", body(3 * CHUNK))
        parts = daemon.store.namespace("photos/parts")
        assert parts is not None
        await daemon.store.evict(parts, part_keys(daemon, bucket)[1:2])
        with pytest.raises(NoSuchBlock):
            await daemon.service.objects.open(bucket, b"k")
        await until(lambda: bucket.blocks == 0 and not part_keys(daemon, bucket))
        await nothing_held(daemon)


async def test_a_bucket_goes_with_what_is_left_of_its_parts() -> None:
    async with running_daemon(SETTINGS) as daemon:
        bucket = await make_bucket(daemon)
        await put_object(daemon, bucket, b"k", body(2 * CHUNK))
        await daemon.service.objects.delete(bucket, [b"k"])
        await daemon.service.drop_namespace(bucket)
        await until(lambda: daemon.store.namespaces() == [])


async def test_nobody_sees_or_opens_the_hidden_namespace() -> None:
    async with running_daemon(SETTINGS) as daemon:
        bucket = await make_bucket(daemon)
        await put_object(daemon, bucket, b"k", body(2 * CHUNK))
        assert [namespace.spec.name for namespace in daemon.service.door.owned("default")] == ["photos"]
        for name in ("photos/parts", "photos%2Fparts"):
            with pytest.raises(Exception, match="no namespace"):
                daemon.service.door.find("default", name)


async def test_a_long_object_that_finds_no_room_on_the_disk_leaves_nothing(tmp_path: Path) -> None:
    settings = {**SETTINGS, "nvme.path": str(tmp_path), "nvme.capacity": "100MiB", "nvme.segment": "16MiB"}
    async with running_daemon(settings) as daemon:
        bucket = await make_bucket(daemon)
        stored = 0
        for number in range(20):
            try:
                await put_object(daemon, bucket, b"%d" % number, body(5 * CHUNK, number))
            except NotEvictable:
                break
            stored += 1
        assert 5 < stored < 20
        await until(lambda: len(part_keys(daemon, bucket)) == 5 * stored)
        for number in range(stored):
            assert await get_object(daemon, bucket, b"%d" % number) == body(5 * CHUNK, number)
        await daemon.service.objects.delete(bucket, [b"0", b"1"])
        await until(lambda: len(part_keys(daemon, bucket)) == 5 * (stored - 2))
        await put_object(daemon, bucket, b"again", body(5 * CHUNK))
        await nothing_held(daemon)


async def test_an_object_put_over_the_socket_that_finds_no_room_on_the_disk_does_not_stay_in_memory(
    tmp_path: Path,
) -> None:
    settings = {"nvme.path": str(tmp_path), "nvme.capacity": "100MiB", "nvme.segment": "16MiB"}
    async with running_daemon(settings) as daemon:
        bucket = await make_bucket(daemon)
        client = await daemon.client()
        namespace = await client.open("photos", kind=wire.NamespaceKind.OBJECT, family={})
        states = []
        for number in range(30):
            reserved = await client.reserve(namespace, {b"%d" % number: body(4 * MIB, number)})
            fields = reserved.reservations, reserved.generations, 5000
            states.append((await client.ask(wire.Committed, wire.Commit, *fields, durable=True)).states[0])
        assert states.count(wire.CommitState.DURABLE) == bucket.blocks < 30
        assert set(states) == {wire.CommitState.DURABLE, wire.CommitState.FAILED}
        await client.close()


async def test_verify_reads_the_parts_and_takes_out_an_object_with_a_wrong_one(tmp_path: Path) -> None:
    async with running_daemon({**SETTINGS, "nvme.path": str(tmp_path)}) as daemon:
        bucket, objects = await make_bucket(daemon), daemon.service.objects
        for key in (b"right", b"wrong"):
            await put_object(daemon, bucket, key, body(3 * CHUNK))
        assert await objects.verify(bucket, b"right") and await objects.verify(bucket, b"wrong")
        parts = daemon.store.namespace("photos/parts")
        with await objects.open(bucket, b"wrong") as reader:
            assert reader.manifest is not None and parts is not None
            victim = list(reader.manifest.chunk_keys())[1]
        [extent] = daemon.store.hold(parts, [victim])
        assert extent is not None
        daemon.store.view(extent)[7] ^= 1
        daemon.store.drop(extent)
        assert await objects.verify(bucket, b"right")
        assert not await objects.verify(bucket, b"wrong")
        assert objects.info(bucket, b"wrong") is None
        await until(lambda: len(part_keys(daemon, bucket)) == 3)
        await nothing_held(daemon)


async def test_the_sweep_takes_out_what_no_object_and_no_upload_has_and_nothing_else() -> None:
    async with running_daemon(SETTINGS) as daemon:
        bucket, objects = await make_bucket(daemon), daemon.service.objects
        await put_object(daemon, bucket, b"k", body(2 * CHUNK))
        upload = await objects.uploads.create(bucket, b"u", ObjectAttributes())
        await put_part(daemon, bucket, b"u", upload.name, 1, body(2 * CHUNK))
        writer = await objects.writer(bucket, b"w", 3 * CHUNK)
        await writer.write(memoryview(body(2 * CHUNK)))
        parts = await objects.parts_of(bucket)
        for number in range(300):
            await put_small(daemon.service, parts, b"%016d" % number + bytes(8), b"orphan")
        await until(lambda: len(part_keys(daemon, bucket)) == 2 + (2 + 2) + 2 + 300)
        assert await objects.sweeper.sweep() == 300
        assert await objects.sweeper.sweep() == 0
        await writer.write(memoryview(body(CHUNK)))
        await writer.finish(ObjectAttributes())
        assert await get_object(daemon, bucket, b"w") == body(2 * CHUNK) + body(CHUNK)
        await objects.uploads.abort(bucket, b"u", upload.name)
        await objects.delete(bucket, [b"k", b"w"])
        await until(lambda: not part_keys(daemon, bucket))
        await nothing_held(daemon)


async def test_a_long_object_that_passes_through_drives_no_kv_block_out_of_memory(tmp_path: Path) -> None:
    settings = {**SETTINGS, "nvme.path": str(tmp_path), "nvme.capacity": "200MiB", "nvme.segment": "16MiB"}
    async with running_daemon(settings) as daemon:
        bucket, client = await make_bucket(daemon), await daemon.client()
        namespace = await client.open("kv-test")
        blocks = {b"%016d" % number: body(MIB, number) for number in range(20)}
        for key, data in blocks.items():
            await client.put(namespace, {key: data}, durable=True)
        await put_object(daemon, bucket, b"k", body(60 * CHUNK))
        kv = daemon.store.namespace("kv-test")
        assert kv is not None
        assert set(daemon.store.match(kv, list(blocks)).tiers) == {TierName.DRAM}
        assert await get_object(daemon, bucket, b"k") == body(60 * CHUNK)
        await client.close()


async def test_parts_stay_as_long_as_a_crash_could_bring_their_object_back(tmp_path: Path) -> None:
    async with running_daemon({**SETTINGS, "nvme.path": str(tmp_path)}) as daemon:
        bucket = await make_bucket(daemon, mode="write_back")
        await put_object(daemon, bucket, b"k", body(3 * CHUNK))
        await daemon.store.durable(bucket, b"k", time.monotonic() + 10)
        await put_object(daemon, bucket, b"k", b"newer")
        assert daemon.store.unsettled_below(bucket, b"k"), "the disk still has the long one"
        await until(lambda: not daemon.service.objects.sweeper.tasks())
        assert len(part_keys(daemon, bucket)) == 3
        await daemon.store.durable(bucket, b"k", time.monotonic() + 10)
        await until(lambda: not part_keys(daemon, bucket))


async def test_every_part_is_durable_before_the_object_can_be_seen(tmp_path: Path) -> None:
    async with running_daemon({**SETTINGS, "nvme.path": str(tmp_path)}) as daemon:
        bucket = await make_bucket(daemon)
        writer = await daemon.service.objects.writer(bucket, b"k", 6 * CHUNK, wait_durable=False)
        for piece in pieces_of(body(6 * CHUNK), CHUNK):
            await writer.write(piece)
        await writer.finish(ObjectAttributes())
        parts = daemon.store.namespace("photos/parts")
        assert parts is not None
        infos = [daemon.store.info(parts, key) for key in part_keys(daemon, bucket)]
        assert len(infos) == 6 and all(info is not None and info.durable for info in infos)
