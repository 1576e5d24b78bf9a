"""Names of datasets: one way to write each, and none that is a path."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_plugin.dataset import (
    LONGEST_FILE_NAME,
    BadHint,
    Dataset,
    decode_value,
    encode_value,
    file_name,
    parse_dataset,
    parse_hint,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://train/imagenet", Dataset("train", "imagenet")),
        ("s3://train/imagenet/", Dataset("train", "imagenet")),
        ("s3://train/imagenet///", Dataset("train", "imagenet")),
        ("s3://train/a/b//c", Dataset("train", "a/b//c")),
        ("s3://train", Dataset("train", "")),
        ("s3://train/", Dataset("train", "")),
        ("s3://my.bucket-1/ä", Dataset("my.bucket-1", "ä")),
    ],
)
def test_a_dataset_is_a_folder(text: str, expected: Dataset) -> None:
    assert parse_dataset(text) == expected
    assert parse_dataset(expected.text) == parse_dataset(expected.url) == expected


@pytest.mark.parametrize(
    "text",
    ["", "train/imagenet", "s3:/train", "s3://", "s3://T/x", "s3://tr/x", "s3://-ab/x", "s3://ab./x",
     "s3://train x", "s3://train/a b", 's3://train/"', "s3://train/'", "s3://train/\\", "s3://train/\n",
     "s3://train/\x7f", "s3://../../etc", "S3://train/x", "s3://train/" + "x" * 1000],
)  # fmt: skip
def test_what_can_be_no_dataset_is_refused(text: str) -> None:
    with pytest.raises(BadHint):
        parse_dataset(text)


def test_a_hint_names_each_dataset_once_in_its_order() -> None:
    found = parse_hint("s3://train/b,s3://train/a,s3://train/b/")
    assert [each.folder for each in found] == ["b", "a"]
    with pytest.raises(BadHint):
        parse_hint("s3://train/a,,s3://train/b")
    with pytest.raises(BadHint):
        parse_hint(",".join(f"s3://train/{number}" for number in range(9)))


@pytest.mark.parametrize(
    ("dataset", "name"),
    [
        (Dataset("train", "imagenet"), "train%2Fimagenet"),
        (Dataset("train", ""), "train"),
        (Dataset("train", "../../etc/passwd"), "train%2F..%2F..%2Fetc%2Fpasswd"),
        (Dataset("train", "a~b+ä"), "train%2Fa%7Eb%2B%C3%A4"),
        (Dataset("train", "x" * 300), None),
    ],
)
def test_a_file_is_named_by_signs_that_mean_nothing(dataset: Dataset, name: str | None) -> None:
    assert file_name(dataset) == name


TEXTS = st.text(max_size=40) | st.binary(max_size=40).map(
    lambda raw: raw.decode("utf-8", "surrogateescape")
)


@given(folder=TEXTS)
def test_two_datasets_never_have_one_file(folder: str) -> None:
    name = file_name(Dataset("train", folder))
    if name is not None:
        assert len(name) <= LONGEST_FILE_NAME
        assert set(name) <= set(
            "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-%"
        )
        assert not name.startswith(".")
        assert decode_value(name) == (f"train/{folder}" if folder else "train")


@given(text=TEXTS)
def test_a_value_of_a_comment_is_one_word_and_comes_back(text: str) -> None:
    word = encode_value(text)
    assert word.isascii()
    assert not set(word) & set(" \t\n=\"'\\")
    assert decode_value(word) == text
