"""Counters add up to a dataset, or say that they do not."""

from hypothesis import example, given
from hypothesis import strategies as st

from gateway.cluster.datasets import REST, cover, folder_of

keys = st.text(alphabet="ab/", min_size=1, max_size=12).map(str.encode)


@given(st.lists(keys, max_size=30), st.text(alphabet="ab/", max_size=6).map(str.encode))
@example([b"a/b"], b"a/")
def test_an_exact_cover_counts_the_keys_of_the_prefix_and_no_others(
    held: list[bytes], prefix: bytes
) -> None:
    counters: dict[bytes, int] = {}
    for key in held:
        counters[folder_of(key)] = counters.get(folder_of(key), 0) + 1

    covered = cover(counters, prefix)

    counted = sum(counters[folder] for folder in covered.whole)
    really = sum(key.startswith(prefix) for key in held)
    assert counted == really if covered.exact else counted <= really


def test_keys_are_counted_by_folder_to_two_components() -> None:
    assert folder_of(b"x.bin") == b""
    assert folder_of(b"a/x.bin") == b"a/"
    assert folder_of(b"a/b/x.bin") == b"a/b/"
    assert folder_of(b"a/b/c/d/x.bin") == b"a/b/"


def test_a_packs_shards_are_counted_under_the_folder_of_the_pack() -> None:
    assert folder_of(b".feedrack/packs/0abc/shards/1.lmdb") == b".feedrack/packs/0abc/"
    assert cover([b".feedrack/packs/0abc/"], b"").whole == ()


def test_a_component_of_any_length_makes_no_long_name() -> None:
    assert folder_of(b"a/" + b"b" * 900 + b"/x") == b"a/"
    assert not cover([b"a/"], b"a/" + b"b" * 900 + b"/").exact


def test_what_is_counted_together_is_exact_for_the_whole_bucket_alone() -> None:
    assert cover([b"a/", REST], b"").whole == (b"a/", REST)
    assert not cover([b"a/", REST], b"a/").exact


def test_a_prefix_finer_than_the_counters_is_not_exact() -> None:
    assert not cover([b"a/b/"], b"a/b/c/").exact
    assert cover([b"a/b/"], b"a/").exact
