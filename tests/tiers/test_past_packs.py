"""The origin's own view keeps the contract of every origin, and gives nothing to keep."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.errors import PreconditionFailed
from gateway.model.body import BytesBody
from gateway.model.objects import ObjectRef
from gateway.telemetry.metrics import Metrics
from gateway.tiers.origin_directory import DirectoryOrigin
from gateway.tiers.past_packs import PastPacks
from tests.tiers.origin_contract import ANY, ONLY_NEW, OriginContract


@pytest.fixture
async def inner(tmp_path: Path) -> AsyncIterator[DirectoryOrigin]:
    origin = DirectoryOrigin("nas", tmp_path, Metrics())
    await origin.start()
    yield origin
    await origin.close()


class TestPastPacks(OriginContract):
    @pytest.fixture
    async def origin(self, inner: DirectoryOrigin) -> PastPacks:
        return PastPacks(inner)


async def test_it_has_a_name_of_its_own_and_gives_nothing_to_keep(inner: DirectoryOrigin) -> None:
    origin = PastPacks(inner)
    assert origin.name != inner.name
    await origin.create_bucket("train")
    ref = ObjectRef(origin.name, "train", "a")
    assert (await origin.put(ref, BytesBody(b"a"), {}, ANY)).info is None
    assert not (await origin.head(ref)).cacheable
    assert not (await origin.part_span(ref, 1))[0].cacheable
    opened = await origin.open(ref)
    assert not opened.info.cacheable
    await opened.close()


async def test_whoever_wants_to_hears_of_each_put_even_of_one_that_fails(
    inner: DirectoryOrigin,
) -> None:
    heard: list[tuple[str, str]] = []
    origin = PastPacks(inner, lambda *where: heard.append(where))
    await origin.create_bucket("train")
    ref = ObjectRef(origin.name, "train", "a")
    await origin.put(ref, BytesBody(b"a"), {}, ANY)
    with pytest.raises(PreconditionFailed):
        await origin.put(ref, BytesBody(b"b"), {}, ONLY_NEW)
    assert heard == [("train", "a")] * 2
