"""A page after the other tells all that the counters know: each dataset once, in order, with what
its members hold and who may read it."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.admin import dataset_pages
from gateway.admin.dataset_pages import DatasetPages
from gateway.auth.readers import Readers
from gateway.cluster.counters import Counters, entry_of
from gateway.cluster.datasets import REST, Counter
from gateway.cluster.members import Members
from gateway.config import Rule, TenantConfig
from gateway.errors import TierUnavailable
from gateway.index.cluster import Link
from packer.format import Manifest, Place
from packer.format.manifest import encode_manifest
from tests.cluster.listed import member
from tests.cluster.one_redis import OneRedis, one_redis
from tests.s3.running import Running, running

T = TypeVar("T")
Held = dict[tuple[str, bytes, bytes], dict[str, int]]

# The packs there are, and one that nobody knows.
PACKED = ("", "a/", "a/b/c/", "a/b", "~")
ROOTS = {prefix: Place(prefix).root.encode() for prefix in PACKED}
UNKNOWN = b".feedrack/packs/00000000000000000000000000000000/"
FOLDERS = (b"", b"!/", b"a/", b"a/b/", b"a/bb/", b"z/", b"z\xff/", "ü/\n/".encode(), REST, UNKNOWN)
# As the origins call them; "eu" is "europe" and "europa" to clients, "hidden" another's name.
PLACES = (
    ("main", b"train"), ("main", b"train-2"), ("main", b"public"), ("main", b"no\xff"),
    ("main", b"hidden"), ("other", b"eu"), ("other", b"unseen"), ("gone", b"train"),
)  # fmt: skip
SEEN = {
    "europa": ("other", b"eu"),
    "europe": ("other", b"eu"),
    "hidden": ("other", b"h"),
    "public": ("main", b"public"),
    "train": ("main", b"train"),
    "train-2": ("main", b"train-2"),
}
BUCKETS = {
    "europe": {"origin": "other", "origin_bucket": "eu"},
    "europa": {"origin": "other", "origin_bucket": "eu"},
    "hidden": {"origin": "other", "origin_bucket": "h"},
    "public": {"public_read": True},
}
TENANTS = (
    TenantConfig(
        name="demo", access_key="1", secret_key_file=Path("/x"), policy=(Rule(allow=("*",)),)
    ),
    TenantConfig(
        name="a-only",
        access_key="2",
        secret_key_file=Path("/x"),
        policy=(Rule(allow=("GetObject",), buckets=("train/a/*",)),),
    ),
)


class World:
    """A node's service, and a Redis that says what the test wants."""

    def __init__(self, node: Running, redis: OneRedis, link: Link) -> None:
        self.redis = redis
        self.members = Members("n1")
        self.members.set([member("n1"), member("n2"), member("n3")])
        self.ready = True
        self.counters = Counters(link, self.members)
        self.pages = DatasetPages(
            node.node.service, self.counters, Readers(TENANTS), ready=lambda: self.ready
        )

    def say(self, held: Held) -> None:
        with self.redis.client() as client, client.pipeline(transaction=False) as pipeline:
            pipeline.flushall()
            for (origin, bucket, folder), nodes in held.items():
                counter = Counter(origin, bucket, folder)
                pipeline.hset(self.counters.key(counter), mapping={**nodes})
                pipeline.zadd(self.counters.folders_key(origin, bucket), {folder: 0})
                pipeline.sadd(self.counters.buckets_key, entry_of(origin, bucket))
            pipeline.execute()

    async def page(self, after: tuple[str, str] | None = None, limit: int = 10_000) -> Any:
        return msgspec.json.decode(msgspec.json.encode(await self.pages.page(after, limit)))


Run = Callable[[Coroutine[Any, Any, T]], T]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, Run[Any]]]:
    folder = tmp_path_factory.mktemp("world")
    other = folder / "other"
    other.mkdir()

    async def build(stack: AsyncExitStack, redis: OneRedis) -> World:
        node = await stack.enter_async_context(
            running(
                folder,
                buckets=BUCKETS,
                origins={"other": {"type": "directory", "path": str(other)}},
            )
        )
        for root in (folder / "data", other):
            _pack(root)
        link = Link(redis.url, "test")
        await link.start()
        stack.push_async_callback(link.close)
        return World(node, redis, link)

    with one_redis() as redis, asyncio.Runner() as runner:
        stack = AsyncExitStack()
        yield runner.run(build(stack, redis)), runner.run
        runner.run(stack.aclose())


def _pack(root: Path) -> None:
    """Begins packs in an origin's buckets."""
    for bucket in ("train", "train-2", "public", "eu", "h"):
        for prefix in PACKED:
            manifests = root / bucket / Place(prefix).manifests
            manifests.mkdir(parents=True)
            manifest = Manifest(
                state="opening", generation=1, pack_id="p", bucket=bucket, prefix=prefix,
                tool="test", created="2026-01-01T00:00:00Z",
            )  # fmt: skip
            (manifests / f"{1:012}.json").write_bytes(encode_manifest(manifest))


def expected(held: Held) -> tuple[list[Any], Any]:
    """The datasets in order, and what is uncounted, straight from what was said."""
    of_root = {root: prefix.encode() for prefix, root in ROOTS.items()}
    rows, uncounted = [], {}
    for name, place in SEEN.items():
        datasets: dict[bytes, dict[str, int]] = {}
        rest: dict[str, int] = {}
        for (origin, bucket, folder), nodes in held.items():
            if (origin, bucket) != place:
                continue
            prefix = of_root.get(folder, folder)
            nameless = prefix in (REST, UNKNOWN, b"z\xff/")
            total = rest if nameless else datasets.setdefault(prefix, {})
            for id_, size_bytes in nodes.items():
                if id_ != "gone":
                    total[id_] = total.get(id_, 0) + size_bytes
        for prefix, nodes in sorted(datasets.items()):
            readers = ["demo"]
            if name == "train" and prefix.startswith(b"a/"):
                readers = ["a-only", "demo"]
            if name == "public":
                readers = ["*"]
            dataset = f"s3://{name}/{prefix.decode()}"
            if nodes:
                rows.append({"dataset": dataset, "nodes": nodes, "readers": readers})
        if rest:
            uncounted[name] = rest
    return rows, uncounted


async def _all(world: World, limit: int) -> tuple[list[Any], Any, int]:
    rows: list[Any] = []
    uncounted: dict[str, dict[str, int]] = {}
    after, pages = None, 0
    while True:
        page = await world.page(after, limit)
        pages += 1
        assert len(page["datasets"]) <= limit
        rows += page["datasets"]
        for bucket, nodes in page["uncounted"].items():
            total = uncounted.setdefault(bucket, {})
            for id_, size_bytes in nodes.items():
                total[id_] = total.get(id_, 0) + size_bytes
        if page["next"] is None:
            return rows, uncounted, pages
        assert page["next"] == rows[-1]["dataset"]
        bucket, _, prefix = page["next"].removeprefix("s3://").partition("/")
        after = (bucket, prefix)


HELD: st.SearchStrategy[Held] = st.dictionaries(
    st.tuples(st.sampled_from(PLACES), st.sampled_from([*FOLDERS, *ROOTS.values()])).map(
        lambda pair: (*pair[0], pair[1])
    ),
    st.dictionaries(st.sampled_from(["n1", "n2", "n3", "gone"]), st.integers(1, 2**60), min_size=1),
    max_size=60,
)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(HELD, st.sampled_from([1, 2, 3, 7, 10_000]), st.sampled_from([1, 2, 3, 100]))
def test_the_pages_together_are_what_the_counters_say(
    world: tuple[World, Run[Any]], held: Held, limit: int, at_once: int
) -> None:
    made, run = world
    made.say(held)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataset_pages, "_FOLDERS_AT_ONCE", at_once)
        rows, uncounted, pages = run(_all(made, limit))

    assert (rows, uncounted) == expected(held)
    assert pages == len(rows) // limit + 1


def test_a_page_ends_early_where_its_rows_are_long(world: tuple[World, Run[Any]]) -> None:
    made, run = world
    made.say({("main", b"train", b"%d/" % number): {"n1": 1} for number in range(9)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataset_pages, "_PAGE_BYTES", 200)
        first = run(made.page())
        rows, _, pages = run(_all(made, 10_000))

    assert 1 <= len(first["datasets"]) < 9
    assert len(rows) == 9
    assert pages > 2


def test_behind_a_name_that_is_not_there_the_next_ones_come(world: tuple[World, Run[Any]]) -> None:
    made, run = world
    made.say(
        {("main", bucket, folder): {"n1": 1} for bucket in (b"a", b"c") for folder in (b"", b"x/")}
    )

    def behind(bucket: str, prefix: str) -> list[str]:
        return [each["dataset"] for each in run(made.page((bucket, prefix)))["datasets"]]

    assert behind("", "") == ["s3://a/", "s3://a/x/", "s3://c/", "s3://c/x/"]
    assert behind("a", "m") == ["s3://a/x/", "s3://c/", "s3://c/x/"]
    assert behind("b", "zzz") == ["s3://c/", "s3://c/x/"]
    assert behind("c", "x/") == behind("d", "") == behind("c", "x/\0\uffff") == []


def test_a_node_that_is_no_member_says_nothing(world: tuple[World, Run[Any]]) -> None:
    made, run = world
    made.ready = False
    try:
        with pytest.raises(TierUnavailable, match="no member"):
            run(made.page())
    finally:
        made.ready = True
