"""Deletes of the directory origin, one key or many. All block."""

from collections.abc import Callable, Sequence

from gateway.errors import S3Error
from gateway.model.conditions import WriteConditions
from gateway.model.objects import DeleteResult
from gateway.tiers.origin_directory.commit import remove, sync_folder
from gateway.tiers.origin_directory.errors import translate
from gateway.tiers.origin_directory.listing import NULL_VERSION
from gateway.tiers.origin_directory.objects import Bucket, Names
from gateway.tiers.origin_directory.paths import names_of

_ALWAYS = WriteConditions()


def delete(
    bucket: Bucket,
    key: str,
    version_id: str | None,
    conditions: WriteConditions = _ALWAYS,
    sync: Callable[[Bucket, Names], None] = sync_folder,
) -> DeleteResult:
    """As `Origin.delete`. A version other than the null version is not there, and to delete what
    is not there is no error."""
    if version_id in (None, NULL_VERSION):
        remove(bucket, names_of(key), conditions, sync)
    return DeleteResult(key=key, version_id=version_id)


def delete_many(
    bucket: Bucket, objects: Sequence[tuple[str, str | None]], where: str
) -> list[DeleteResult]:
    """As `Origin.delete_many`; every folder is synced once, at the end. `where` names the origin.
    TierUnavailable ends it: what is not told as deleted may be."""
    touched: set[Names] = set()
    results: list[DeleteResult] = []
    for key, version_id in objects:
        try:
            result = _delete_one(bucket, key, version_id, touched, where)
        except S3Error as error:
            result = DeleteResult(
                key=key, version_id=version_id, error_code=error.code, error_message=error.message
            )
        results.append(result)
    for names in touched:
        sync_folder(bucket, names)
    return results


def _delete_one(
    bucket: Bucket, key: str, version_id: str | None, touched: set[Names], where: str
) -> DeleteResult:
    try:
        return delete(bucket, key, version_id, sync=lambda _, names: touched.add(names))
    except OSError as error:
        raise translate(error, where) from error
