"""An object version's name on disk belongs to it alone."""

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from gateway.model.objects import ObjectInfo, ObjectRef, ObjectVersion, Span

# Few characters and short texts: what could be mistaken for each other, often is.
TEXT = st.text("ab\0:/1\u00e9\ud800", max_size=4)
VERSIONS = st.builds(
    ObjectVersion,
    st.builds(ObjectRef, TEXT, TEXT, TEXT, st.none() | TEXT.filter(bool)),
    TEXT,
    st.integers(0, 2**63),
)


@given(VERSIONS, VERSIONS)
@example(
    ObjectVersion(ObjectRef("m", "ab", "c"), "e", 1),
    ObjectVersion(ObjectRef("m", "a", "bc"), "e", 1),
)
@example(
    ObjectVersion(ObjectRef("m", "b", "k", "v"), "e", 1),
    ObjectVersion(ObjectRef("m", "b", "kv"), "e", 1),
)
@example(
    ObjectVersion(ObjectRef("m", "b", "k"), "e1", 2),
    ObjectVersion(ObjectRef("m", "b", "k"), "e", 12),
)
def test_two_versions_share_a_digest_only_if_they_are_one(
    one: ObjectVersion, other: ObjectVersion
) -> None:
    assert (one.digest == other.digest) == (one == other)


@given(st.lists(TEXT, min_size=5, max_size=5), st.integers(0, 3), st.integers(1, 4))
def test_moving_text_between_neighbouring_fields_makes_another_digest(
    fields: list[str], left: int, count: int
) -> None:
    origin, bucket, key, version_id, etag = fields
    moved = list(fields)
    moved[left], moved[left + 1] = (
        fields[left] + fields[left + 1][:count],
        fields[left + 1][count:],
    )
    assume(moved != fields)
    assume(version_id and moved[3])
    first = ObjectVersion(ObjectRef(origin, bucket, key, version_id), etag, 1)
    second = ObjectVersion(ObjectRef(*moved[:4]), moved[4], 1)
    assert first.digest != second.digest


@given(st.text(st.characters(), max_size=50))
def test_any_key_has_a_digest_of_16_bytes(key: str) -> None:
    version = ObjectVersion(ObjectRef("main", "train", key), "e", 1)
    assert len(version.digest) == 16
    assert version.digest == ObjectVersion(ObjectRef("main", "train", key), "e", 1).digest


def test_a_digest_is_the_same_in_every_release() -> None:
    """What is kept on disk is named by it: another digest is a cold cache."""
    version = ObjectVersion(ObjectRef("main", "train", "a/b", "v1"), "0" * 32, 5)
    assert version.digest.hex() == "ea697eb34ed696676e985e7dee8a7023"


def test_the_current_ref_has_no_version_id() -> None:
    ref = ObjectRef("main", "train", "a", "v1")
    assert ref.current == ObjectRef("main", "train", "a")
    current = ObjectRef("main", "train", "a")
    assert current.current is current


def test_an_object_is_cacheable_and_described_by_nothing_unless_said() -> None:
    info = ObjectInfo(etag="e", size_bytes=1, last_modified_ms=2)
    assert info.cacheable
    assert info.checksums_known
    assert info.headers == {}
    assert info.headers is not ObjectInfo(etag="e", size_bytes=1, last_modified_ms=2).headers


def test_values_are_frozen() -> None:
    ref = ObjectRef("main", "train", "a")
    with pytest.raises(AttributeError):
        ref.key = "b"  # type: ignore[misc]


def test_a_span_knows_its_size() -> None:
    version = ObjectVersion(ObjectRef("main", "train", "a"), "e", 10)
    assert Span(version, 1, 8, 10).size_bytes == 2
