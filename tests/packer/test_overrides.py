"""The log of overrides, and manifests: what is stored comes back, and nonsense is refused."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.format import (
    Manifest,
    ManifestError,
    Override,
    OverrideBatch,
    OverrideError,
    Overrides,
    Place,
    Record,
    current,
    decode_overrides,
    encode_overrides,
    etag_bytes,
)
from packer.format.manifest import decode_manifest, encode_manifest
from packer.format.overrides import folded

PACKED = Record(3, etag_bytes("e"), 1, shard=0)


def log(*batches: tuple[str, Override]) -> Overrides:
    overrides = Overrides()
    for number, (node, override) in enumerate(batches, start=1):
        overrides.add(number, OverrideBatch(node=node, records=(override,)))
    return overrides


def put(key: str, etag: str = "other") -> Override:
    return Override(op="put", key=key, etag=etag, modified_ms=5, headers={"content-type": "x"})


@given(key=st.text(), op=st.sampled_from(["put", "delete", "unsure"]), etag=st.text())
def test_a_batch_comes_back(key: str, op: str, etag: str) -> None:
    override = Override(op=op, key=key, etag=etag)  # type: ignore[arg-type]
    batch = OverrideBatch(node="n1", records=(override,))
    assert decode_overrides(encode_overrides(batch)) == batch


@given(raw=st.binary())
def test_what_is_no_batch_is_refused(raw: bytes) -> None:
    with pytest.raises(OverrideError):
        decode_overrides(raw)


def test_overrides_of_another_version_are_refused() -> None:
    with pytest.raises(OverrideError):
        decode_overrides(b'{"format_version": 2, "node": "n", "records": []}')


def test_a_gap_in_the_log_is_an_error() -> None:
    overrides = log(("n1", put("a")))
    with pytest.raises(OverrideError, match="record 2"):
        overrides.add(3, OverrideBatch(node="n1", records=()))


def test_the_last_record_of_a_node_counts_and_is_sure() -> None:
    stand = log(("n1", put("a")), ("n1", Override(op="delete", key="a"))).get("a")
    assert stand is not None
    assert (stand.override.op, stand.sure) == ("delete", True)


@pytest.mark.parametrize(
    "overrides",
    [
        log(("n1", put("a")), ("n2", put("a"))),
        log(("n1", put("a")), ("n2", put("a")), ("n2", put("a"))),
        log(("n1", Override(op="unsure", key="a"))),
    ],
)
def test_where_nodes_may_have_overtaken_one_another_listings_ask(overrides: Overrides) -> None:
    stand = overrides.get("a")
    assert stand is not None
    assert not stand.sure


def test_a_record_whose_original_is_gone_stays_unless_the_log_says_otherwise() -> None:
    assert folded(PACKED, None) == PACKED
    assert folded(PACKED, log(("n", put("a"))).get("a")) is None
    assert folded(PACKED, log(("n", Override(op="delete", key="a"))).get("a")) is None


def test_a_put_of_the_same_bytes_leaves_them_and_brings_its_headers() -> None:
    left = folded(PACKED, log(("n", put("a", etag="e"))).get("a"))
    assert left == msgspec.structs.replace(PACKED, modified_ms=5, headers={"content-type": "x"})


@given(raw=st.binary() | st.text().map(str.encode))
def test_what_is_no_manifest_is_refused(raw: bytes) -> None:
    with pytest.raises(ManifestError):
        decode_manifest(raw)


def manifest(**changes: object) -> Manifest:
    base = Manifest(
        state="opening", generation=1, pack_id="p", bucket="b", prefix="", tool="t", created=""
    )
    return msgspec.structs.replace(base, **changes)


def test_a_manifest_comes_back() -> None:
    assert decode_manifest(encode_manifest(manifest())) == manifest()


@pytest.mark.parametrize(
    "changes",
    [
        {"format_version": 2},
        {"state": "whole"},
        {"state": "dropped", "shards": ({"sha256": "../../x", "size_bytes": 1},)},
    ],
)
def test_a_manifest_that_must_not_be_believed_is_refused(changes: dict[str, object]) -> None:
    raw = msgspec.json.encode({**msgspec.to_builtins(manifest()), **changes})
    with pytest.raises(ManifestError):
        decode_manifest(raw)


@given(generations=st.lists(st.integers(1, 10**12 - 1)))
def test_the_highest_generation_counts(generations: list[int]) -> None:
    place = Place("p/")
    keys = [place.manifest(generation) for generation in generations]
    assert current([*keys, place.manifests + "rubbish"]) == max(generations, default=0)
