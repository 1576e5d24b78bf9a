"""The instants at which an object changes: a rename makes it, an unlink ends it. All block.

Both happen under the key's lock, after a look at what is there, so that a condition and the change
it guards are one step for every request of this process; and both are durable before they return:
the folder that holds the name is synced. Folders come and go with the objects in them, so a step
that finds its folder gone is taken again.
"""

import os
import stat
from collections.abc import Callable

from gateway.errors import NoSuchKey, PreconditionFailed, TierUnavailable
from gateway.model.conditions import WriteConditions
from gateway.tiers.origin_directory.drafts import Draft
from gateway.tiers.origin_directory.folders import ABSENT, Folder
from gateway.tiers.origin_directory.objects import (
    ATTEMPTS,
    Bucket,
    Names,
    find,
    forget_moving,
    make_parents,
    open_object,
)
from gateway.tiers.origin_directory.paths import OBJECT_NAME
from gateway.tiers.origin_directory.records import (
    Description,
    Identity,
    Record,
    etag_of,
)


def check_conditions(bucket: Bucket, names: Names, conditions: WriteConditions) -> None:
    """Nothing where the write may go on. NoSuchKey for an If-Match on a missing key,
    PreconditionFailed otherwise."""
    if not conditions:
        return
    found = open_object(bucket, names)
    if found is None:
        if conditions.if_match is not None:
            raise NoSuchKey
        return
    fd, status, record = found
    os.close(fd)
    if conditions.if_none_match_any:
        raise PreconditionFailed(fields={"Condition": "If-None-Match"})
    if conditions.if_match not in (None, "*", etag_of(Identity.of(status), record)):
        raise PreconditionFailed(fields={"Condition": "If-Match"})


def place(bucket: Bucket, names: Names, draft: Draft, conditions: WriteConditions) -> None:
    """Makes a sealed draft the object, atomically and durably. Within the bucket's gate."""
    with bucket.locks.hold((bucket.name, names)):
        check_conditions(bucket, names, conditions)
        with find(bucket, names) as found:
            old = found.status if found is not None else None
        for _ in range(ATTEMPTS):
            try:
                with make_parents(bucket, names[:-1]) as parent:
                    _put_there(draft, parent, names[-1])
                break
            except (*ABSENT, IsADirectoryError):
                bucket.check()
        else:
            raise TierUnavailable("The folders on the way to this key change all the time.")
        forget_moving(bucket, names)
        if old is not None:
            bucket.records.drop(old)


def remove(
    bucket: Bucket,
    names: Names,
    conditions: WriteConditions,
    sync: Callable[[Bucket, Names], None],
) -> None:
    """Deletes the object if there is one, and the folders it leaves empty; `sync` is told the
    names of the folder that has lost an entry."""
    with bucket.locks.share(bucket.name), bucket.locks.hold((bucket.name, names)):
        check_conditions(bucket, names, conditions)
        for _ in range(ATTEMPTS):
            with find(bucket, names) as found:
                if found is None:
                    return
                try:
                    status = found.status
                    found.folder.unlink(found.name)
                except (*ABSENT, IsADirectoryError):
                    continue
                inside = found.name == OBJECT_NAME
            break
        else:
            raise TierUnavailable("The folders on the way to this key change all the time.")
        forget_moving(bucket, names)
        bucket.records.drop(status)
        sync(bucket, prune(bucket, names if inside else names[:-1]))


def prune(bucket: Bucket, names: Names) -> Names:
    """Removes the folder at `names` if it is empty, and so on upwards; the first that stays."""
    while names:
        try:
            with bucket.folder.enter(*names[:-1]) as parent:
                if not parent.remove_folder(names[-1]):
                    break
        except ABSENT:
            pass
        names = names[:-1]
    return names


def sync_folder(bucket: Bucket, names: Names) -> None:
    """Makes the entries of the folder at `names` durable; of the next one up if it is gone."""
    while True:
        try:
            with bucket.folder.enter(*names) as folder:
                folder.sync()
        except ABSENT:
            if not names:
                raise
            names = names[:-1]
        else:
            return


def retag(bucket: Bucket, names: Names, tags: tuple[tuple[str, str], ...]) -> None:
    """Gives the object other tags; its version stays what it is. NoSuchKey."""
    with bucket.locks.share(bucket.name), bucket.locks.hold((bucket.name, names)):
        found = open_object(bucket, names)
        if found is None:
            raise NoSuchKey
        fd, status, record = found
        try:
            bucket.records.attach(fd, _with_tags(Identity.of(status), record, tags))
            os.fsync(fd)
        finally:
            os.close(fd)


def description_of(record: Record | None, guessed_type: str) -> Description:
    """What a copy takes over from its source."""
    if record is None or record.etag is None:
        tags = record.tags if record is not None else ()
        return Description(headers={"content-type": guessed_type}, tags=tags)
    return Description(headers=record.headers, tags=record.tags)


def _with_tags(
    identity: Identity, record: Record | None, tags: tuple[tuple[str, str], ...]
) -> Record:
    if record is None:
        return Record(identity=identity, tags=tags)
    return Record(
        headers=record.headers,
        tags=tags,
        identity=identity,
        etag=record.etag,
        checksums=record.checksums,
        checksum_type=record.checksum_type,
        parts=record.parts,
    )


def _put_there(draft: Draft, parent: Folder, name: str) -> None:
    status = parent.stat(name)
    if status is not None and stat.S_ISDIR(status.st_mode):
        with parent.enter(name) as inner:
            draft.rename(inner, OBJECT_NAME)
            inner.sync()
    else:
        draft.rename(parent, name)
        parent.sync()
