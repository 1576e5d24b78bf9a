"""What a start mends: drafts nobody will finish, relocations cut in the middle, ended uploads."""

import stat
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from gateway.errors import FeedrackError, NoSuchBucket, S3Error
from gateway.tiers.origin_directory.backend import Backend
from gateway.tiers.origin_directory.errors import translate
from gateway.tiers.origin_directory.objects import finish_moving
from gateway.tiers.origin_directory.paths import is_bucket
from gateway.tiers.origin_directory.scratch import clean_drafts
from gateway.tiers.origin_directory.uploads import clean_uploads

_log = structlog.get_logger()


def recover(backend: Backend) -> None:
    """Mends every bucket. One that may not be written to, or where there is no room, is served as
    it is. Blocks."""
    with backend.mount.root() as root:
        names = [name for name, kind in root.scan() if kind == stat.S_IFDIR and is_bucket(name)]
        with _warned(backend, None):
            clean_drafts(root, backend.now_ns() / 1e9, forget=lambda _: None)
    for name in names:
        with _warned(backend, name):
            _recover(backend, name)


@contextmanager
def _warned(backend: Backend, bucket: str | None) -> Iterator[None]:
    """Goes on with a warning where mending is refused; TierUnavailable goes through."""
    try:
        yield
    except NoSuchBucket:
        return
    except (OSError, FeedrackError) as error:
        told = translate(error, backend.name) if isinstance(error, OSError) else error
        if not isinstance(told, S3Error):
            raise told from error
        _log.warning("bucket_not_mended", origin=backend.name, bucket=bucket, reason=str(told))


def _recover(backend: Backend, name: str) -> None:
    now_seconds = backend.now_ns() / 1e9
    with backend.bucket(name) as bucket:
        drafts = clean_drafts(bucket.folder, now_seconds, bucket.records.drop)
        relocations = finish_moving(bucket)
        clean_uploads(bucket, now_seconds)
    if drafts or relocations:
        _log.info(
            "bucket_mended",
            origin=backend.name,
            bucket=name,
            drafts=drafts,
            relocations=relocations,
        )
