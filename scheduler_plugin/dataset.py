"""A dataset as a job's hint names it, and what it is called in files and comments. Pure.

In a hint a dataset is a folder: `s3://train/imagenet` and `s3://train/imagenet/` are the same one.
Its text has no slash at the end. `site/job_submit.lua` has the same rules once more: what they
agree on is held together by a test that puts the same hints to both.
"""

import re
from urllib.parse import quote_from_bytes, unquote_to_bytes

from msgspec import Struct

# Of a whole hint: it is taken apart inside the controller.
LONGEST_BYTES = 512
LONGEST_FILE_NAME = 200
MOST_DATASETS = 8

_BUCKET = re.compile(rb"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
# Blanks, quotes and commas end or divide hints, and a backslash is somebody's escape.
_REFUSED = re.compile(rb"[\x00-\x20\x7f,\"'\\]")
# What a value of an AdminComment may hold as it is.
_PLAIN_IN_COMMENT = "/:,"


class BadHint(ValueError):  # noqa: N818 - named as the other refusals are
    """What the hint names cannot be a dataset; the message says why."""


class Dataset(Struct, frozen=True, order=True):
    """A bucket, and a folder in it without the slash at its end; "" is the whole bucket."""

    bucket: str
    folder: str

    @property
    def text(self) -> str:
        """The one way in which it is written."""
        return f"s3://{self.bucket}/{self.folder}" if self.folder else f"s3://{self.bucket}"

    @property
    def prefix(self) -> str:
        """What the keys of its objects begin with."""
        return f"{self.folder}/" if self.folder else ""

    @property
    def url(self) -> str:
        """As the gateways are asked for it."""
        return f"s3://{self.bucket}/{self.prefix}"


def parse_dataset(text: str) -> Dataset:
    """The dataset that one name of a hint stands for. BadHint. Bytes that are not UTF-8 come as
    surrogates, and stay what they are."""
    raw = text.encode("utf-8", "surrogateescape")
    if len(raw) > LONGEST_BYTES:
        raise BadHint(f"longer than {LONGEST_BYTES} bytes")
    if _REFUSED.search(raw):
        raise BadHint("holds a blank, a quote, a comma, a backslash or a control character")
    if not raw.startswith(b"s3://"):
        raise BadHint("not s3://bucket/prefix")
    bucket, _, prefix = raw[5:].partition(b"/")
    if not _BUCKET.fullmatch(bucket):
        raise BadHint("not the name of a bucket")
    return Dataset(bucket.decode(), prefix.rstrip(b"/").decode("utf-8", "surrogateescape"))


def parse_hint(text: str) -> tuple[Dataset, ...]:
    """The datasets of a hint, divided by commas, each once, in their order. BadHint."""
    if len(text.encode("utf-8", "surrogateescape")) > LONGEST_BYTES:
        raise BadHint(f"longer than {LONGEST_BYTES} bytes")
    found = tuple(dict.fromkeys(map(parse_dataset, text.split(","))))
    if len(found) > MOST_DATASETS:
        raise BadHint(f"names more than {MOST_DATASETS} datasets")
    return found


def file_name(dataset: Dataset) -> str | None:
    """The name of its ranking's file; None where that would be too long."""
    name = _encode(dataset.text.removeprefix("s3://"), plain="").replace("~", "%7E")
    if name.startswith("."):
        name = f"%2E{name[1:]}"
    return name if len(name) <= LONGEST_FILE_NAME else None


def encode_value(text: str) -> str:
    """Any text as a value in an AdminComment."""
    return _encode(text, plain=_PLAIN_IN_COMMENT).replace("~", "%7E")


def decode_value(text: str) -> str:
    """What `encode_value` made."""
    return unquote_to_bytes(text).decode("utf-8", "surrogateescape")


def _encode(text: str, *, plain: str) -> str:
    return quote_from_bytes(text.encode("utf-8", "surrogateescape"), safe=plain)
