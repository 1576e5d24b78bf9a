"""Finding an object in its bucket's folder, and turning a file into a folder without a gap.

`a` is a file until `a/b` is written; then it becomes the file `.feedrack~o` in the folder `a`, and
every reader must find it before, after and in between:

- Where the file system swaps two names in one instant (ext4, XFS, Btrfs, tmpfs), a folder with a
  second name of the file in it takes the file's place. There is no in between.
- Elsewhere (NFS) the file is moved into `moving/<digest of its names>/`, and that folder to where
  the file was. A reader that finds nothing at the object's place looks there, and a crash in
  between is mended at the next start, from the names noted beside.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b

import msgspec

from gateway.errors import AccessDenied, NoSuchBucket, TierUnavailable
from gateway.tiers.origin_directory.folders import ABSENT, Folder, exchange
from gateway.tiers.origin_directory.locks import Locks
from gateway.tiers.origin_directory.paths import OBJECT_NAME, STATE_NAME
from gateway.tiers.origin_directory.records import Record, Records
from gateway.tiers.origin_directory.scratch import DRAFTS, draft_name, write_whole

Names = tuple[str, ...]

# How often a look or a step is repeated when others change the folders under it.
ATTEMPTS = 100

_MOVING = (STATE_NAME, "moving")
_NOTE_SUFFIX = ".json"


class Bucket:
    """One bucket's open folder, with what is needed to read and change it."""

    def __init__(
        self,
        name: str,
        folder: Folder,
        locks: Locks,
        *,
        attributes: bool = True,
        exchanges: bool = True,
    ) -> None:
        self.name = name
        self.folder = folder
        self.locks = locks
        self.records = Records(folder, attributes=attributes)
        self.exchanges = exchanges

    def check(self) -> None:
        """NoSuchBucket once the folder has been deleted."""
        if self.folder.status().st_nlink == 0:
            raise NoSuchBucket(fields={"BucketName": self.name})


class Place:
    """Where an object's file is: an open folder and a name in it."""

    __slots__ = ("folder", "name")

    def __init__(self, folder: Folder, name: str) -> None:
        self.folder = folder
        self.name = name

    @property
    def status(self) -> os.stat_result:
        """FileNotFoundError once it is gone."""
        return os.stat(self.name, dir_fd=self.folder.fd, follow_symlinks=False)


@contextmanager
def find(bucket: Bucket, names: Names) -> Iterator[Place | None]:
    """Where the object is now, or None. Links, pipes and devices are no objects."""
    place = _look(bucket, names) or _look_moving(bucket, names) or _look(bucket, names)
    if place is None:
        yield None
        return
    with place.folder:
        yield place


def open_object(bucket: Bucket, names: Names) -> tuple[int, os.stat_result, Record | None] | None:
    """A descriptor of the object's file with its status and record; None where there is none."""
    for _ in range(ATTEMPTS):
        with find(bucket, names) as place:
            if place is None:
                return None
            try:
                fd = place.folder.open(place.name)
            except ABSENT:
                continue
        try:
            status, record = bucket.records.load(fd)
        except FileNotFoundError:
            os.close(fd)
            continue
        except BaseException:
            os.close(fd)
            raise
        if stat.S_ISREG(status.st_mode):
            return fd, status, record
        os.close(fd)
    raise TierUnavailable("The object is replaced faster than it can be looked at.")


def make_parents(bucket: Bucket, names: Names) -> Folder:
    """The folder that `names` lead to, creating what is missing and relocating objects that are
    in the way. AccessDenied where a link or a device is."""
    folder = bucket.folder.enter()
    for depth, name in enumerate(names, 1):
        with folder:
            try:
                inner = folder.enter_or_make(name)
            except NotADirectoryError:
                relocate(bucket, folder, names[:depth])
                inner = folder.enter(name)
        folder = inner
    return folder


def relocate(bucket: Bucket, parent: Folder, names: Names) -> None:
    """Makes the file at `names` (last of them in `parent`) the object of a folder there."""
    with bucket.locks.hold((bucket.name, names)):
        status = parent.stat(names[-1])
        if status is None or stat.S_ISDIR(status.st_mode):
            return
        if not stat.S_ISREG(status.st_mode):
            raise AccessDenied("What lies at a prefix of this key is neither file nor folder.")
        if not (bucket.exchanges and _swap(bucket, parent, names[-1])):
            _move(bucket, parent, names)
        parent.sync()


def forget_moving(bucket: Bucket, names: Names) -> None:
    """Removes what an interrupted relocation left of an object that is replaced or deleted.
    Under the object's lock."""
    try:
        with bucket.folder.enter(*_MOVING) as moving:
            moving.remove_tree(_digest(names))
            moving.unlink(_digest(names) + _NOTE_SUFFIX)
    except ABSENT:
        return


def finish_moving(bucket: Bucket) -> int:
    """Ends the relocations that a crash interrupted; says how many."""
    finished = 0
    try:
        moving = bucket.folder.enter(*_MOVING)
    except ABSENT:
        return finished
    with moving:
        for note, _ in moving.scan():
            names = _noted(moving, note)
            if names is not None:
                with bucket.locks.hold((bucket.name, names)):
                    with make_parents(bucket, names[:-1]) as parent:
                        _land(moving, parent, names)
                        parent.sync()
                    moving.unlink(note)
                finished += 1
    return finished


def moving_gate(bucket: Bucket) -> str:
    """The gate a listing passes while it reads a folder."""
    return f"{bucket.name}/moving"


def _look(bucket: Bucket, names: Names) -> Place | None:
    try:
        folder = bucket.folder.enter(*names[:-1])
    except ABSENT:
        return None
    name = names[-1]
    status = folder.stat(name)
    if status is not None and stat.S_ISDIR(status.st_mode):
        with folder:
            try:
                folder, name = folder.enter(name), OBJECT_NAME
            except ABSENT:
                return None
        status = folder.stat(name)
    if status is not None and stat.S_ISREG(status.st_mode):
        return Place(folder, name)
    folder.close()
    return None


def _look_moving(bucket: Bucket, names: Names) -> Place | None:
    try:
        folder = bucket.folder.enter(*_MOVING, _digest(names))
    except ABSENT:
        return None
    status = folder.stat(OBJECT_NAME)
    if status is not None and stat.S_ISREG(status.st_mode):
        return Place(folder, OBJECT_NAME)
    folder.close()
    return None


def _swap(bucket: Bucket, parent: Folder, name: str) -> bool:
    """Relocation in one instant; False where the file system cannot."""
    with bucket.folder.make(*DRAFTS) as drafts:
        spare = draft_name()
        with drafts.make(spare) as inner:
            try:
                os.link(
                    name,
                    OBJECT_NAME,
                    src_dir_fd=parent.fd,
                    dst_dir_fd=inner.fd,
                    follow_symlinks=False,
                )
            except ABSENT:
                raise
            except OSError:
                drafts.remove_tree(spare)
                return False
            inner.sync()
            linked = os.stat(OBJECT_NAME, dir_fd=inner.fd, follow_symlinks=False)
            if not exchange(drafts, spare, parent, name):
                drafts.remove_tree(spare)
                return False
            # From here on `inner` is the folder in the file's place, `spare` the file.
            replaced = drafts.stat(spare)
            if replaced is not None and stat.S_ISDIR(replaced.st_mode):
                # Others had made the folder meanwhile: it goes back.
                exchange(drafts, spare, parent, name)
                inner.unlink(OBJECT_NAME)
                drafts.remove_folder(spare)
                return True
            if replaced is not None and replaced.st_ino != linked.st_ino:
                # Others had put another file there between the link and the swap.
                drafts.rename(spare, inner, OBJECT_NAME)
                inner.sync()
            drafts.remove_tree(spare)
    return True


def _move(bucket: Bucket, parent: Folder, names: Names) -> None:
    """Relocation in two renames, the object being found in `moving` in between."""
    digest = _digest(names)
    write_whole(bucket.folder, (*_MOVING, digest + _NOTE_SUFFIX), msgspec.json.encode(names))
    with bucket.folder.enter(*_MOVING) as moving:
        # A listing reads folders without looking here: none may run in between.
        with bucket.locks.close(moving_gate(bucket)):
            with moving.make(digest) as inner:
                parent.rename(names[-1], inner, OBJECT_NAME)
                inner.sync()
            _land(moving, parent, names)
        parent.sync()
        moving.unlink(digest + _NOTE_SUFFIX)


def _land(moving: Folder, parent: Folder, names: Names) -> None:
    """Brings `moving/<digest>` to the object's place, whatever others put there meanwhile."""
    digest = _digest(names)
    for _ in range(ATTEMPTS):
        if moving.stat(digest) is None:
            return
        with moving.enter(digest) as inner:
            if inner.stat(OBJECT_NAME) is None:
                break
            try:
                moving.rename(digest, parent, names[-1])
            except NotADirectoryError:
                # A newer file of others lies there: it is the object now.
                parent.rename(names[-1], inner, OBJECT_NAME)
            except OSError:
                with parent.enter(names[-1]) as taken:
                    inner.rename(OBJECT_NAME, taken, OBJECT_NAME)
                    taken.sync()
            else:
                return
    moving.remove_folder(digest)


def _noted(moving: Folder, note: str) -> Names | None:
    """The names in a note of ours. Others may write here too: no name of theirs leads out."""
    raw = moving.read(note) if note.endswith(_NOTE_SUFFIX) else None
    if raw is None:
        return None
    try:
        names = msgspec.json.decode(raw, type=tuple[str, ...])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    safe = all(name not in ("", ".", "..") and not {"/", "\0"} & set(name) for name in names)
    return names if names and safe and note == _digest(names) + _NOTE_SUFFIX else None


def _digest(names: Names) -> str:
    return blake2b("/".join(names).encode("utf-8"), digest_size=16).hexdigest()
