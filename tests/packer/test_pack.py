"""Packing, repacking, unpacking and dropping against real stores: every object is accounted for."""

import errno
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import msgspec
import pytest

from packer.catalog import NoPack, PackDamaged, fetch_index, load_all
from packer.drop import WouldLose, drop
from packer.format import (
    Override,
    OverrideBatch,
    Place,
    Record,
    encode_overrides,
    etag_text,
    locate,
)
from packer.lock import Locked, PackLock
from packer.originals import Refused, delete_originals
from packer.pack import PackRefused, plan_only
from packer.progress import Silent
from packer.stores.directory import DirectoryStore
from packer.stores.protocol import Deletion, Got, Listed, ObjectMissing, Store
from packer.stores.s3 import S3Store
from packer.targets import BucketTarget, DirectoryTarget, Facts, Target, TarTarget
from packer.unpack import Unpacked, unpack
from packer.verify import verify_pack
from tests.packer.conftest import Bucket, made
from tests.packer.memory import MemoryStore

PLACE = Place("p/")


def filled(bucket: Bucket, count: int = 60, prefix: str = "p/") -> dict[str, bytes]:
    """Objects of all small sizes, the empty one included."""
    chance = random.Random(count)
    objects = {
        f"{prefix}{number % 3}/{number:03}.bin": chance.randbytes(chance.choice([0, 1, 900, 9000]))
        for number in range(count)
    }
    for key, data in objects.items():
        bucket.put(key, data)
    return objects


def records(bucket: Bucket, prefix: str = "p/") -> dict[str, Record]:
    folder = bucket.folder / "read"
    folder.mkdir(exist_ok=True)
    with fetch_index(bucket.store, Place(prefix), bucket.manifest(prefix), folder) as index:
        return {key.decode(): record for key, record in index.walk()}


def packed_bytes(bucket: Bucket, prefix: str = "p/") -> dict[str, bytes]:
    """What is in the pack, read by offset as a gateway does."""
    manifest, place = bucket.manifest(prefix), Place(prefix)
    return {
        key: bucket.store.read(
            place.shard(manifest.shards[record.shard].sha256), record.offset, record.size_bytes
        )
        for key, record in records(bucket, prefix).items()
        if record.shard is not None
    }


def listed(bucket: Bucket, prefix: str = "p/") -> dict[str, tuple[int, str, int]]:
    return {
        item.key: (item.size_bytes, item.etag, item.modified_ms)
        for item in bucket.store.listing(prefix)
    }


def log(bucket: Bucket, number: int, *overrides: Override) -> None:
    batch = OverrideBatch(node="n1", records=overrides)
    bucket.store.put(PLACE.override(number), encode_overrides(batch), if_absent=True)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Closes what a test opened."""
    with ExitStack() as stack:
        yield stack


def test_every_object_lies_in_the_pack_as_it_was_listed(bucket: Bucket) -> None:
    objects = filled(bucket)
    bucket.put("q", b"not under the prefix")
    before = listed(bucket)
    report = bucket.pack()
    assert report.packed_objects == report.objects == len(objects)
    assert report.shard_files == report.plan.new_shards > 2
    assert packed_bytes(bucket) == objects
    found = {
        key: (record.size_bytes, etag_text(record.etag), record.modified_ms)
        for key, record in records(bucket).items()
    }
    assert found == before
    assert verify_pack(bucket.store, PLACE, bucket.folder, Silent()).damaged_count == 0


def test_a_dry_run_says_what_will_be_and_writes_nothing(bucket: Bucket) -> None:
    objects = filled(bucket)
    before = bucket.keys()
    planned = plan_only(bucket.store, bucket.options(), Silent())
    assert bucket.keys() == before
    assert bucket.pack().plan == planned.plan
    assert (planned.requests_before, planned.requests_after) == (60, planned.plan.new_shards + 1)
    saved = planned.plan.original_objects, planned.plan.original_bytes
    assert saved == (60, sum(map(len, objects.values())))


def test_a_dry_run_counts_no_original_that_is_gone_already(alone: Bucket) -> None:
    alone.put("p/new", b"1234")
    plan = plan_only(alone.store, alone.options(), Silent()).plan
    assert (plan.original_objects, plan.original_bytes) == (1, 4)


def test_the_same_objects_make_the_same_shards(bucket: Bucket) -> None:
    filled(bucket)
    bucket.pack()
    first = bucket.manifest().shards
    drop(bucket.store, PLACE, bucket.folder, force=False)
    bucket.pack(jobs=1)
    assert bucket.manifest().shards == first


def test_headers_metadata_and_tags_are_kept(s3_bucket: Bucket, stack: ExitStack) -> None:
    headers = {
        "content-type": "image/png",
        "cache-control": "no-cache",
        "x-amz-meta-who": "me, myself",
        "x-amz-tagging": "a=1&b=%C3%A9",
    }
    s3_bucket.store.put("p/a", b"data", headers=headers)
    s3_bucket.pack()
    record = records(s3_bucket)["p/a"]
    assert isinstance(record.headers, dict)
    assert headers.items() >= record.headers.items()
    assert record.tags == (("a", "1"), ("b", "é"))
    other = stack.enter_context(closing(made(s3_bucket.endpoint_url)))
    target = BucketTarget(other, "p/", "q/", replace=False, keep_times=True)
    result = run_unpack(s3_bucket, target)
    assert (result.objects, result.failed_count) == (1, 0)
    got = other.get("q/a")
    assert got.data == b"data"
    assert got.headers["x-amz-meta-mtime"].startswith(str(record.modified_ms // 1000))
    assert got.tags == record.tags
    assert got.headers["x-amz-meta-who"] == "me, myself"


def run_unpack(bucket: Bucket, target: Target, **options: bool) -> Unpacked:
    in_place = options.get("in_place", False)
    return unpack(bucket.store, PLACE, bucket.folder, target, Silent(), jobs=4, in_place=in_place)


ODD_KEYS = [
    "p/", "p/a", "p/a/b", "p/a//b", "p/é/日本/💾", "p/" + "k" * 1022, "p/" + "é" * 511,
    "p/ +%&?#=;'\"",
    "p/<&>", "p/..", "p/../x", "p/.", "p/\\", "p/\x01", "p/a\tb", "p/~", "p/.feedrack~x", "p/a.",
]  # fmt: skip


@pytest.mark.parametrize("kind", ["moto", "gateway"])
def test_keys_of_every_kind(
    kind: str,
    request: pytest.FixtureRequest,
    keys_of_aws: None,
    tmp_path: Path,
    stack: ExitStack,
) -> None:
    server = request.getfixturevalue(kind)
    url = server.url if kind == "moto" else server.endpoint_url
    bucket = Bucket(stack.enter_context(closing(made(url))), url, tmp_path)
    # What moto cannot take or list is no matter of ours.
    keys = [key for key in ODD_KEYS if kind == "gateway" or not set(key) & {"\x01", "\t"}]
    objects = {}
    for number, key in enumerate(keys):
        try:
            bucket.put(key, bytes([number]) * number)
        except Exception:
            if kind == "gateway":
                raise
        else:
            objects[key] = bytes([number]) * number
    assert len(objects) > 10
    bucket.pack(shard_bytes=40)
    assert packed_bytes(bucket) == objects
    target = DirectoryTarget(tmp_path / "out", "p/")
    result = run_unpack(bucket, target)
    assert (result.objects, result.failed_count) == (len(objects), 0)
    facts = (tmp_path / "out" / ".feedrack~unpacked" / "metadata.jsonl").read_bytes().splitlines()
    paths = {line["key"]: line["path"] for line in map(msgspec.json.decode, facts)}
    assert {key: (tmp_path / "out" / path).read_bytes() for key, path in paths.items()} == objects


def test_repacking_without_a_change_changes_nothing(bucket: Bucket) -> None:
    filled(bucket)
    bucket.pack()
    before = bucket.keys()
    report = bucket.pack()
    assert not report.changed
    assert bucket.keys() == before


def test_repacking_takes_what_is_new_or_changed_and_forgets_what_was_deleted(
    bucket: Bucket,
) -> None:
    objects = filled(bucket)
    bucket.pack()
    shards = {shard.sha256 for shard in bucket.manifest().shards}
    changed, deleted, new = "p/0/000.bin", "p/1/001.bin", "p/9/new"
    bucket.put(changed, b"changed")
    bucket.put(new, b"new")
    bucket.remove(deleted)
    objects |= {changed: b"changed", new: b"new"}
    del objects[deleted]
    report = bucket.pack()
    assert (report.plan.read_objects, report.plan.gone_objects) == (2, 1)
    assert packed_bytes(bucket) == objects
    assert shards & {shard.sha256 for shard in bucket.manifest().shards}


def test_worn_out_shards_are_written_anew(bucket: Bucket) -> None:
    objects = filled(bucket, 40)
    bucket.pack()
    for key in sorted(objects)[:20]:
        bucket.remove(key)
        del objects[key]
    report = bucket.pack()
    assert report.plan.moved_objects
    assert packed_bytes(bucket) == objects


def test_another_order_lays_everything_out_anew(bucket: Bucket) -> None:
    objects = filled(bucket)
    bucket.pack()
    report = bucket.pack(order="shuffled:3")
    assert (report.plan.moved_objects, report.plan.kept_objects) == (60, 0)
    assert packed_bytes(bucket) == objects
    found = records(bucket)
    laid = sorted(found, key=lambda key: (found[key].shard, found[key].offset))
    assert laid != sorted(laid)


def test_large_objects_stay_and_are_listed(bucket: Bucket) -> None:
    bucket.put("p/large", bytes(2000))
    bucket.put("p/small", b"s")
    report = bucket.pack(largest_bytes=1999)
    assert (report.objects, report.packed_objects) == (2, 1)
    record = records(bucket)["p/large"]
    assert (record.shard, record.size_bytes) == (None, 2000)


def test_replaced_files_stay_for_their_readers_and_go_later(bucket: Bucket) -> None:
    filled(bucket, 10)
    bucket.pack()
    old = bucket.manifest()
    bucket.put("p/new", b"x")
    bucket.pack()
    keys = bucket.keys()
    assert old.index is not None
    assert PLACE.index(old.index.sha256) in keys
    assert PLACE.manifest(old.generation) in keys
    bucket.pack(keep_seconds=0.0)
    keys = bucket.keys()
    assert PLACE.index(old.index.sha256) not in keys
    assert [key for key in keys if key.startswith(PLACE.manifests)] == [
        PLACE.manifest(bucket.manifest().generation)
    ]
    assert verify_pack(bucket.store, PLACE, bucket.folder, Silent()).damaged_count == 0


class Meddling:
    """A store in which others write while it is read: `meddle` is called before each read."""

    def __init__(self, store: Store, meddle: Callable[[str], None]) -> None:
        self._store = store
        self._meddle = meddle

    def get(self, key: str, etag: str | None = None) -> Got:
        if key.startswith("p/"):
            self._meddle(key)
        return self._store.get(key, etag)

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


@pytest.mark.parametrize("after_reading", [False, True])
def test_an_object_that_changes_meanwhile_is_left_out_and_listed_as_it_is(
    bucket: Bucket, after_reading: bool
) -> None:
    objects = filled(bucket)
    victims = {"p/0/003.bin": b"changed", "p/1/004.bin": None, "p/9/new": b"new"}
    trigger = max(objects) if after_reading else min(objects)
    plain = bucket.store

    def meddle(key: str) -> None:
        if key == trigger:
            for name, data in victims.items():
                if data is None:
                    bucket.remove(name)
                else:
                    plain.put(name, data)

    bucket.store = Meddling(plain, meddle)  # type: ignore[assignment]
    report = bucket.pack(jobs=1)
    bucket.store = plain
    found = records(bucket)
    assert "p/1/004.bin" not in found
    for name in ("p/0/003.bin", "p/9/new"):
        assert found[name].shard is None
        assert etag_text(found[name].etag) == plain.head(name).etag
    left = {item.key for item in report.left_out}
    assert left == (set() if after_reading else {"p/0/003.bin", "p/1/004.bin"})
    assert packed_bytes(bucket) == {k: v for k, v in objects.items() if k not in victims}
    bucket.pack()
    assert packed_bytes(bucket)["p/0/003.bin"] == b"changed"


def test_a_second_packer_is_told_who_packs(bucket: Bucket) -> None:
    filled(bucket, 3)
    with PackLock(bucket.store, PLACE.lock), pytest.raises(Locked, match="process"):
        bucket.pack()
    assert bucket.pack().packed_objects == 3
    assert PLACE.lock not in set(bucket.keys())


def test_prefixes_that_share_keys_are_not_both_packed(bucket: Bucket) -> None:
    filled(bucket, 3)
    bucket.pack()
    for prefix in ("", "p/0/", "p"):
        with pytest.raises(PackRefused, match="shares keys"):
            bucket.pack(prefix)
    filled(bucket, 3, "q/")
    bucket.pack("q/")
    living = [found.prefix for found in load_all(bucket.store) if found.state != "dropped"]
    assert living == ["p/", "q/"]


def test_originals_go_only_in_the_version_that_is_packed(bucket: Bucket) -> None:
    objects = filled(bucket)
    bucket.pack()
    bucket.put("p/0/000.bin", b"changed")
    log(bucket, 1, Override(op="put", key="p/1/001.bin"))
    deleted = delete_originals(bucket.store, PLACE, bucket.folder, Silent())
    assert (deleted.objects, deleted.changed, deleted.failed) == (58, 2, 0)
    assert set(listed(bucket)) == {"p/0/000.bin", "p/1/001.bin"}
    # A key that is not listed is not a deleted key now.
    objects |= {"p/0/000.bin": b"changed"}
    report = bucket.pack()
    assert report.packed_objects == 60
    assert packed_bytes(bucket) == objects
    bucket.pack(order="shuffled:1")
    assert packed_bytes(bucket) == objects


def test_behind_a_gateway_that_lets_nobody_past_its_packs_no_original_goes(
    tmp_path: Path,
) -> None:
    bucket = Bucket(MemoryStore(), "", tmp_path)
    objects = filled(bucket)
    bucket.pack()
    bucket.store.is_gateway = True
    with pytest.raises(Refused, match="past its packs"):
        delete_originals(bucket.store, PLACE, bucket.folder, Silent())
    assert set(listed(bucket)) == set(objects)


def test_a_damaged_pack_deletes_no_original(s3_bucket: Bucket) -> None:
    objects = filled(s3_bucket)
    s3_bucket.pack()
    shard = s3_bucket.manifest().shards[0]
    key = PLACE.shard(shard.sha256)
    data = bytearray(s3_bucket.store.get(key).data)
    data[-5000] ^= 1
    s3_bucket.store.put(key, bytes(data))
    result = verify_pack(s3_bucket.store, PLACE, s3_bucket.folder, Silent())
    assert result.damaged_count == shard.objects
    with pytest.raises(Refused, match="damaged"):
        delete_originals(s3_bucket.store, PLACE, s3_bucket.folder, Silent())
    assert set(listed(s3_bucket)) == set(objects)


@pytest.fixture
def alone(s3_bucket: Bucket) -> Bucket:
    """A pack whose originals are gone."""
    filled(s3_bucket)
    s3_bucket.pack()
    delete_originals(s3_bucket.store, PLACE, s3_bucket.folder, Silent())
    return s3_bucket


def test_the_log_is_folded_into_the_next_pack(alone: Bucket) -> None:
    before = records(alone)
    same = etag_text(before["p/2/002.bin"].etag)
    log(alone, 1, Override(op="delete", key="p/0/000.bin"))
    alone.store.put("p/1/001.bin", b"new")
    log(
        alone,
        2,
        Override(op="put", key="p/1/001.bin", etag="x"),
        # Its bytes are in the pack alone, and they are the same.
        Override(op="put", key="p/2/002.bin", etag=same, modified_ms=7, headers={"expires": "0"}),
    )
    alone.pack()
    found, data = records(alone), packed_bytes(alone)
    assert "p/0/000.bin" not in found
    assert data["p/1/001.bin"] == b"new"
    assert (found["p/2/002.bin"].modified_ms, found["p/2/002.bin"].headers) == (7, {"expires": "0"})
    assert len(found) == 59
    assert alone.manifest().overrides_through == 2
    # What is logged later holds over the new pack.
    log(alone, 3, Override(op="delete", key="p/1/001.bin"))
    alone.remove("p/1/001.bin")
    alone.pack()
    assert "p/1/001.bin" not in records(alone)


def test_unpacking_in_place_brings_back_what_is_gone_and_replaces_nothing(alone: Bucket) -> None:
    expected = packed_bytes(alone)
    alone.store.put("p/0/000.bin", b"written since")
    log(alone, 1, Override(op="put", key="p/0/000.bin", etag="x"))
    alone.store.put("p/0/003.bin", b"there, and nobody said so")
    log(alone, 2, Override(op="delete", key="p/1/001.bin"))
    target = BucketTarget(alone.store, "p/", "p/", replace=False, keep_times=False)
    result = run_unpack(alone, target, in_place=True)
    assert (result.objects, result.kept, result.failed_count) == (57, 1, 0)
    expected |= {"p/0/000.bin": b"written since", "p/0/003.bin": b"there, and nobody said so"}
    del expected["p/1/001.bin"]
    assert {key: alone.store.get(key).data for key in listed(alone)} == expected


def test_unpacking_elsewhere_replaces_only_what_it_may(bucket: Bucket) -> None:
    bucket.put("p/large", bytes(5000))
    bucket.put("p/small", b"packed")
    bucket.pack(largest_bytes=4999)
    bucket.put("q/large", b"theirs")
    bucket.put("q/small", b"theirs")
    target = BucketTarget(bucket.store, "p/", "q/", replace=False, keep_times=False)
    result = run_unpack(bucket, target)
    assert (result.objects, result.kept, result.failed_count) == (0, 2, 0)
    assert {bucket.store.get(key).data for key in ("q/large", "q/small")} == {b"theirs"}
    target = BucketTarget(bucket.store, "p/", "q/", replace=True, keep_times=False)
    assert run_unpack(bucket, target).objects == 2
    assert bucket.store.get("q/large").data == bytes(5000)


def test_a_tar_that_is_not_whole_does_not_look_so(bucket: Bucket, tmp_path: Path) -> None:
    filled(bucket)
    bucket.pack()

    class Full(TarTarget):
        def write(self, facts: Facts, got: Got) -> bool:
            if facts.key.endswith("009.bin"):
                raise OSError(errno.ENOSPC, "no room")
            return super().write(facts, got)

    with pytest.raises(OSError, match="no room"):
        run_unpack(bucket, Full(tmp_path / "tars", "p/", 2**30))
    assert not list((tmp_path / "tars").iterdir())


def test_unpacking_into_a_directory_brings_bytes_and_times(bucket: Bucket) -> None:
    objects = filled(bucket)
    bucket.put("p/large", bytes(5000))
    bucket.pack(largest_bytes=4999)
    bucket.put("p/0/000.bin", b"since")
    log(bucket, 1, Override(op="put", key="p/0/000.bin", etag="x"))
    before = listed(bucket)
    out = bucket.folder / "out"
    result = run_unpack(bucket, DirectoryTarget(out, "p/"))
    assert (result.objects, result.failed_count) == (61, 0)
    objects |= {"p/0/000.bin": b"since", "p/large": bytes(5000)}
    for key, data in objects.items():
        path = out / key.removeprefix("p/")
        assert path.read_bytes() == data
        # HeadObject says seconds, which is all that is known of what the log speaks of.
        precise = path.stat().st_mtime_ns // 1_000_000 == before[key][2]
        assert precise or (key, path.stat().st_mtime) == ("p/0/000.bin", before[key][2] // 1000)


def test_a_pack_is_not_dropped_while_objects_are_in_it_alone(alone: Bucket) -> None:
    with pytest.raises(WouldLose, match="60 objects"):
        drop(alone.store, PLACE, alone.folder, force=False)
    assert len(packed_bytes(alone)) == 60
    run_unpack(alone, BucketTarget(alone.store, "p/", "p/", replace=False, keep_times=False))
    dropped = drop(alone.store, PLACE, alone.folder, force=False)
    assert dropped.lost_objects == 0


def test_dropping_leaves_a_tombstone_and_the_next_pack_goes_on_from_it(bucket: Bucket) -> None:
    objects = filled(bucket, 5)
    bucket.pack()
    generation = bucket.manifest().generation
    drop(bucket.store, PLACE, bucket.folder, force=False)
    assert bucket.keys(PLACE.root) == [PLACE.manifest(generation + 1)]
    with pytest.raises(NoPack):
        bucket.manifest()
    bucket.pack()
    assert bucket.manifest().generation == generation + 3
    assert packed_bytes(bucket) == objects


def test_a_missing_or_short_index_is_said_not_mapped(s3_bucket: Bucket) -> None:
    filled(s3_bucket, 5)
    s3_bucket.pack()
    index = s3_bucket.manifest().index
    assert index is not None
    key = PLACE.index(index.sha256)
    whole = s3_bucket.store.get(key).data
    for short in (whole[:-1], whole[:5000], b"x" + whole[1:]):
        s3_bucket.store.put(key, short)
        with pytest.raises(PackDamaged):
            records(s3_bucket)
    s3_bucket.store.delete([Deletion(key)])
    with pytest.raises(PackDamaged, match="missing"):
        records(s3_bucket)


def test_a_folder_with_files_of_a_gateway_is_refused(
    bucket: Bucket, gateway: object, request: pytest.FixtureRequest
) -> None:
    if not (isinstance(bucket.store, S3Store) and hasattr(gateway, "folder")):
        pytest.skip("only behind the gateway")
    bucket.put("p/a", b"x")
    root = gateway.folder / "origin"
    if not (root / bucket.name).is_dir():
        pytest.skip("another service")
    with pytest.raises(Exception, match="through the gateway"):
        list(DirectoryStore(root, bucket.name).listing("p/"))


def test_shards_can_be_walked_without_lmdb(s3_bucket: Bucket) -> None:
    filled(s3_bucket)
    s3_bucket.pack()
    shard = s3_bucket.manifest().shards[0]
    path = s3_bucket.folder / "shard"
    path.write_bytes(s3_bucket.store.get(PLACE.shard(shard.sha256)).data)
    assert sum(found.length_bytes for found in locate(path)) >= shard.object_bytes


def test_listings_are_understood(s3_bucket: Bucket) -> None:
    assert list(s3_bucket.store.listing("")) == []
    with pytest.raises(ObjectMissing):
        s3_bucket.store.head("none")
    s3_bucket.put("a+b c", b"x")
    (item,) = s3_bucket.store.listing("")
    assert isinstance(item, Listed)
    assert (item.key, item.size_bytes) == ("a+b c", 1)


def test_tags_go_along_with_what_is_not_in_the_pack(s3_bucket: Bucket) -> None:
    s3_bucket.put("p/large", bytes(5000), x_amz_tagging="a=1&b=2")
    s3_bucket.put("p/small", b"x", x_amz_tagging="c=3")
    s3_bucket.pack(largest_bytes=4999)
    target = BucketTarget(s3_bucket.store, "p/", "q/", replace=False, keep_times=False)
    run_unpack(s3_bucket, target)
    assert s3_bucket.store.tags("q/large") == (("a", "1"), ("b", "2"))
    assert s3_bucket.store.tags("q/small") == (("c", "3"),)
