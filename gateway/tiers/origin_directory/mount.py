"""The root of a directory origin, and whether it is still the one we started with.

A NAS that is unmounted leaves an empty folder in its place. Taking that for the bucket store would
answer NoSuchKey for everything and let writes vanish under the next mount, so the root's device
and inode are remembered, and a marker file in it tells a remount of the same NAS from another
folder. A bucket that was a mount of its own and is not any more is unavailable too.
"""

import errno
import secrets
from pathlib import Path

from gateway.errors import NoSuchBucket, TierUnavailable
from gateway.tiers.origin_directory.folders import ABSENT, Folder
from gateway.tiers.origin_directory.paths import STATE_NAME, is_bucket
from gateway.tiers.origin_directory.scratch import write_whole

_MARKER_NAME = "root"
_MARKER_BYTES = 16


class Mount:
    """The folder whose folders are buckets."""

    def __init__(self, name: str, path: Path) -> None:
        self._name = name
        self._path = path
        self._place: tuple[int, int] | None = None
        self._marker: bytes | None = None
        self._bucket_devices: dict[str, int] = {}

    def start(self) -> None:
        """Remembers which folder this is. TierUnavailable where there is none."""
        with self._open() as root:
            self._place = _place(root)
            self._marker = _read_marker(root)
            if self._marker is None:
                self._marker = _write_marker(root)

    def root(self) -> Folder:
        """The root, opened. TierUnavailable where it is not the one of `start`."""
        root = self._open()
        try:
            self._check_place(root)
        except BaseException:
            root.close()
            raise
        return root

    def bucket(self, name: str) -> Folder:
        """A bucket's folder, opened. NoSuchBucket, TierUnavailable."""
        if not is_bucket(name):
            raise NoSuchBucket(fields={"BucketName": name})
        with self.root() as root:
            root_device = root.status().st_dev
            try:
                bucket = root.enter(name)
            except ABSENT as error:
                if self._bucket_devices.get(name, root_device) != root_device:
                    raise self._unmounted(name) from error
                raise NoSuchBucket(fields={"BucketName": name}) from error
        try:
            self._check_device(name, bucket.status().st_dev, root_device)
        except BaseException:
            bucket.close()
            raise
        return bucket

    def forget(self, bucket: str) -> None:
        """The bucket was deleted; the next of its name may be anywhere."""
        self._bucket_devices.pop(bucket, None)

    def _check_place(self, root: Folder) -> None:
        place = _place(root)
        if place == self._place:
            return
        if self._marker is None or _read_marker(root) != self._marker:
            raise TierUnavailable(
                f"Origin {self._name}: {self._path} is another folder than at the start; "
                "is it still mounted?"
            )
        self._place = place

    def _check_device(self, bucket: str, device: int, root_device: int) -> None:
        known = self._bucket_devices.setdefault(bucket, device)
        if known == device:
            return
        if device == root_device:
            raise self._unmounted(bucket)
        self._bucket_devices[bucket] = device

    def _unmounted(self, bucket: str) -> TierUnavailable:
        return TierUnavailable(
            f"Origin {self._name}: the mount at bucket {bucket} is gone; mount it again."
        )

    def _open(self) -> Folder:
        try:
            return Folder.at(self._path)
        except OSError as error:
            raise TierUnavailable(
                f"Origin {self._name}: {self._path} cannot be opened ({error.strerror})."
            ) from error


def _place(root: Folder) -> tuple[int, int]:
    status = root.status()
    return status.st_dev, status.st_ino


def _read_marker(root: Folder) -> bytes | None:
    try:
        with root.enter(STATE_NAME) as state:
            return state.read(_MARKER_NAME) or None
    except ABSENT:
        return None


def _write_marker(root: Folder) -> bytes | None:
    marker = secrets.token_hex(_MARKER_BYTES).encode("ascii")
    try:
        write_whole(root, (STATE_NAME, _MARKER_NAME), marker)
    except OSError as error:
        # A folder that is not ours to write to is served without a marker.
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            return None
        raise
    return _read_marker(root)
