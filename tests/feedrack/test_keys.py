"""Keys in one piece of memory answer as a sorted list of them would."""

import pickle
import sys
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedrack.errors import WrongAddress
from feedrack.keys import Keys, in_order
from packer.ordering import shuffle_key

KEY = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


def made(keys: Iterable[str]) -> Keys:
    return Keys(key.encode() for key in keys)


@given(st.lists(KEY, max_size=60), KEY)
def test_keys_are_a_sorted_list_without_doubles(given_keys: list[str], other: str) -> None:
    expected = sorted(set(given_keys), key=str.encode)
    keys = made(given_keys)
    assert len(keys) == len(expected)
    assert list(keys) == expected == keys[:] == [keys[n] for n in range(len(keys))]
    for number, key in enumerate(expected):
        assert keys.find(key) == keys.index(key) == number
        assert key in keys
        assert keys[number - len(keys)] == key
    assert (other in keys) == (other in expected)
    restored = pickle.loads(pickle.dumps(keys))
    assert restored == keys
    assert hash(restored) == hash(keys)


def test_there_is_nothing_beyond_the_ends() -> None:
    keys = made("abc")
    for index in (3, -4):
        with pytest.raises(IndexError):
            keys[index]
    with pytest.raises(ValueError, match="'d'"):
        keys.index("d")
    with pytest.raises(ValueError, match="'a'"):
        keys.index("a", 1)
    nothing: object = 1
    assert nothing not in keys
    assert keys != ["a", "b", "c"]


def test_many_keys_take_little_more_than_their_text() -> None:
    keys = made(f"train/{number:08}.jpg" for number in range(100_000))
    text_bytes = 18 * len(keys)
    held = sys.getsizeof(keys._text) + sys.getsizeof(keys._offsets)
    assert held < text_bytes + 8.2 * len(keys)
    assert len(pickle.dumps(keys)) < text_bytes + 2.2 * len(keys)


@given(st.lists(KEY, max_size=60, unique=True), st.text(st.characters(codec="ascii"), min_size=1))
def test_a_shuffle_is_the_one_that_packer_lays_out(names: list[str], seed: str) -> None:
    keys = made(names)
    order = in_order(keys, f"shuffled:{seed}")
    expected = sorted(names, key=lambda key: shuffle_key(seed, key))
    assert [keys[index] for index in order] == expected


def test_a_shuffle_of_many_has_each_once() -> None:
    keys = made(str(number) for number in range(70_000))
    order = in_order(keys, "shuffled:1")
    assert sorted(order) == list(range(70_000))
    assert [keys[index] for index in order] == sorted(keys, key=lambda key: shuffle_key("1", key))


def test_other_orders_are_lexical_and_as_given() -> None:
    keys = made("abc")
    assert list(in_order(keys, "lexical")) == [0, 1, 2]
    assert in_order(keys, [2, 0]) == [2, 0]
    for nonsense in ("shuffled", "shuffled:", "random:1", ""):
        with pytest.raises(WrongAddress):
            in_order(keys, nonsense)
