"""Keys become names and come back, and no name leads anywhere else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidBucketName, InvalidURI, KeyTooLongError
from gateway.tiers.origin_directory.paths import (
    OBJECT_NAME,
    STATE_NAME,
    check_new_bucket,
    decode,
    encode,
    is_bucket,
    names_of,
)

NASTY = st.sampled_from(
    ["", ".", "..", "...", "\0", "%", "%00", "%25", ".feedrack~", OBJECT_NAME, STATE_NAME,
     ".feedrack~q", ".feedrack~cx", ".feedrack~zx", ".nfs0001", "a", "é", "💾", "a" * 255]
)  # fmt: skip
SEGMENTS = st.one_of(
    NASTY,
    st.text(st.characters(exclude_characters="/", exclude_categories=["Cs"]), max_size=400),
    st.lists(NASTY, max_size=30).map("".join),
)


@given(SEGMENTS)
def test_a_segment_comes_back(segment: str) -> None:
    assert decode(encode(segment)) == segment


@given(SEGMENTS)
def test_every_name_is_one_that_a_file_can_have(segment: str) -> None:
    for name in encode(segment):
        assert name not in ("", ".", "..", OBJECT_NAME, STATE_NAME)
        assert "/" not in name
        assert "\0" not in name
        assert len(name.encode()) <= 255


@given(st.lists(SEGMENTS, min_size=1, max_size=3).map("/".join).filter(bool))
def test_a_key_has_names_or_is_refused(key: str) -> None:
    if len(key.encode()) > 1024:
        with pytest.raises(KeyTooLongError):
            names_of(key)
    else:
        assert names_of(key) == tuple(name for part in key.split("/") for name in encode(part))


@given(st.text(st.characters(exclude_characters="/"), min_size=1, max_size=30))
def test_a_foreign_name_is_read_one_way_or_not_at_all(name: str) -> None:
    segment = decode((name,))
    assert segment is None or encode(segment) == (name,)


@given(st.sampled_from(["q", "c", "z", "o", "state", ""]), st.text("%0250a.", max_size=6))
def test_only_the_canonical_spelling_is_an_object(kind: str, rest: str) -> None:
    name = f".feedrack~{kind}{rest}"
    segment = decode((name,))
    assert segment is None or encode(segment) == (name,)


def test_ordinary_keys_keep_their_names() -> None:
    assert names_of("train/shard 01.tar") == ("train", "shard 01.tar")
    assert names_of(".feedrack/packs/one") == (".feedrack", "packs", "one")
    assert names_of(".hidden/~backup") == (".hidden", "~backup")


def test_a_key_of_1024_bytes_works_and_one_more_does_not() -> None:
    assert len(names_of("k" * 1024)) > 1
    with pytest.raises(KeyTooLongError):
        names_of("é" * 513)


def test_a_key_of_256_segments_works_and_one_more_does_not() -> None:
    assert len(names_of("/" * 255)) == 256
    with pytest.raises(KeyTooLongError):
        names_of("/" * 256)


@pytest.mark.parametrize("key", ["", "a\ud800b"])
def test_what_is_no_key_is_refused(key: str) -> None:
    with pytest.raises(InvalidURI):
        names_of(key)


@pytest.mark.parametrize("name", ["abc", "a-b.c", "0" * 63, "1.2.3"])
def test_s3_bucket_names_may_be_created(name: str) -> None:
    check_new_bucket(name)
    assert is_bucket(name)


@pytest.mark.parametrize(
    "name",
    ["", "ab", "a" * 64, "Abc", "a_b", "-ab", "ab-", "a..b", "1.2.3.4", "xn--abc", "a-s3alias",
     "../etc", "a/b", "a\0b", ".feedrack~state", "abc\n"],
)  # fmt: skip
def test_other_bucket_names_may_not(name: str) -> None:
    with pytest.raises(InvalidBucketName):
        check_new_bucket(name)


@pytest.mark.parametrize("name", ["..", ".", ".snapshot", STATE_NAME, "lost+found", "a b", "a/b"])
def test_hidden_and_odd_folders_are_no_buckets(name: str) -> None:
    assert not is_bucket(name)


def test_folders_that_were_there_before_are_buckets() -> None:
    assert is_bucket("Data_2020")
