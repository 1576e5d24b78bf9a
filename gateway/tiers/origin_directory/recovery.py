"""What a start mends: drafts nobody will finish, relocations cut in the middle, ended uploads."""

import stat

import structlog

from gateway.errors import AccessDenied, FeedrackError, NoSuchBucket
from gateway.tiers.origin_directory.backend import Backend
from gateway.tiers.origin_directory.drafts import clean_drafts
from gateway.tiers.origin_directory.errors import translate
from gateway.tiers.origin_directory.objects import finish_moving
from gateway.tiers.origin_directory.paths import is_bucket
from gateway.tiers.origin_directory.uploads import clean_uploads

_log = structlog.get_logger()


def recover(backend: Backend) -> None:
    """Mends every bucket. One that may not be written to is served as it is. Blocks."""
    with backend.mount.root() as root:
        names = [name for name, kind in root.scan() if kind == stat.S_IFDIR and is_bucket(name)]
    for name in names:
        try:
            _recover(backend, name)
        except NoSuchBucket:
            continue
        except (OSError, FeedrackError) as error:
            told = translate(error, backend.name) if isinstance(error, OSError) else error
            if not isinstance(told, AccessDenied):
                raise told from error
            _log.warning("bucket_not_mended", origin=backend.name, bucket=name, reason=str(told))


def _recover(backend: Backend, name: str) -> None:
    now_seconds = backend.now_ns() / 1e9
    with backend.bucket(name) as bucket:
        drafts = clean_drafts(bucket.folder, now_seconds)
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
