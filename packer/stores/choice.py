"""Which store a URL and the options of a command mean."""

from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from packer.stores.directory import DirectoryStore
from packer.stores.protocol import Store, StoreError
from packer.stores.s3 import S3Store
from packer.stores.s3_client import find_target


class Dataset(NamedTuple):
    """`s3://bucket/prefix`: a bucket, and what the keys begin with."""

    bucket: str
    prefix: str

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"


def parse_dataset(url: str) -> Dataset:
    """The bucket and prefix of `s3://bucket/prefix`. ValueError where it is something else."""
    scheme, separator, rest = url.partition("://")
    bucket, _, prefix = rest.partition("/")
    if scheme != "s3" or not separator or not bucket:
        raise ValueError(f"not s3://bucket/prefix: {url}")
    return Dataset(bucket, prefix)


def open_store(bucket: str, endpoint_url: str | None, profile: str | None) -> Store:
    """The store that has the bucket: a directory for `file://`, else S3. StoreError."""
    if endpoint_url is not None and endpoint_url.startswith("file:"):
        parts = urlsplit(endpoint_url)
        if parts.netloc not in ("", "localhost") or not parts.path:
            raise StoreError(f"not a directory of this machine: {endpoint_url}")
        return DirectoryStore(Path(unquote(parts.path)), bucket)
    return S3Store(bucket, find_target(bucket, endpoint_url, profile))
