"""Whose packs lie in a place is learned from its manifest, once."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.errors import TierUnavailable
from gateway.telemetry.metrics import Metrics
from gateway.tiers.origin_directory import DirectoryOrigin
from gateway.tiers.packed import places as places_module
from gateway.tiers.packed.places import Places
from packer.format import Manifest, Place, State
from packer.format.manifest import encode_manifest
from tests.cluster.listed import Clock
from tests.packs.bench import BUCKET, Watched


class Lot:
    """A bucket's places at an origin whose requests are counted."""

    def __init__(self, root: Path, origin: Watched, clock: Clock) -> None:
        self.root = root
        self.origin = origin
        self.clock = clock
        self.places = Places(origin, clock)

    def write(self, prefix: str, state: State, generation: int = 1, at: str = "") -> str:
        """A manifest in the place of its prefix, or elsewhere; the place's root."""
        place = Place(prefix)
        manifest = Manifest(
            state=state, generation=generation, pack_id="p", bucket=BUCKET, prefix=prefix,
            tool="test", created="2026-01-01T00:00:00Z",
        )  # fmt: skip
        path = self.root / BUCKET / (at or place.root) / "manifests" / f"{generation:012}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode_manifest(manifest))
        return at or place.root

    async def ask(self, *roots: str) -> dict[str, str]:
        return await self.places.prefixes(BUCKET, roots)

    @property
    def asked(self) -> int:
        return sum(self.origin.requests.values())


@pytest.fixture
async def lot(tmp_path: Path) -> AsyncIterator[Lot]:
    (tmp_path / BUCKET).mkdir()
    inner = DirectoryOrigin("main", tmp_path, Metrics())
    await inner.start()
    made = Lot(tmp_path, Watched(inner), Clock())
    yield made
    await made.places.close()
    await inner.close()


async def test_a_place_is_asked_for_once(lot: Lot) -> None:
    one, two = lot.write("a/b/c/", "opening"), lot.write("ü", "opening")

    assert await lot.ask(one, two) == {one: "a/b/c/", two: "ü"}
    asked = lot.asked
    lot.clock.seconds += 1000
    assert await lot.ask(one) == {one: "a/b/c/"}
    assert lot.asked == asked


async def test_what_is_no_pack_is_asked_for_again_after_a_while(lot: Lot) -> None:
    dropped = lot.write("a/", "dropped")
    nothing, foreign = Place("b/").root, lot.write("c/", "opening", at=Place("d/").root)

    assert await lot.ask(dropped, nothing, foreign) == {}
    asked = lot.asked
    assert await lot.ask(dropped, nothing, foreign) == {}
    assert lot.asked == asked

    lot.write("a/", "opening", generation=2)
    lot.clock.seconds += 21
    assert await lot.ask(dropped, nothing) == {dropped: "a/"}


async def test_an_origin_that_fails_or_hangs_delays_nobody_for_long(
    lot: Lot, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = lot.write("a/", "opening"), lot.write("b/", "opening")

    async def fails(_operation: str, _key: str) -> None:
        raise TierUnavailable("away")

    lot.origin.before = fails
    assert await lot.ask(one) == {}

    release = asyncio.Event()

    async def hangs(_operation: str, _key: str) -> None:
        await release.wait()

    lot.origin.before = hangs
    monkeypatch.setattr(places_module, "_PATIENCE_SECONDS", 0.01)
    assert await lot.ask(two) == {}
    monkeypatch.setattr(places_module, "_PATIENCE_SECONDS", 30.0)
    release.set()
    # Its question was still on its way.
    assert await lot.ask(two) == {two: "b/"}


async def test_what_is_remembered_is_bounded(lot: Lot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places_module, "_MOST_PLACES", 3)
    await lot.ask(*(Place(f"{number}/").root for number in range(9)))

    assert len(lot.places._known) == 3
