"""The keys of every bucket that are ours: packs lie under `.feedrack/`. Pure.

To whoever does not ask past packs (docs/pack-format.md) there is nothing there: reads answer as for
any key that is missing, listings show none of it, and writes are refused. `Request.authorise` asks
for every key that any operation names, so that none can forget to.
"""

from gateway.errors import AccessDenied, NoSuchKey, NoSuchUpload, S3Error

RESERVED = ".feedrack/"
PACKS = ".feedrack/packs/"

# Operations that only look at the object that their key names, by how AWS names them. What is not
# known to look is a write.
_LOOKS = ("Get", "Head", "List", "Select")
# Their key is a prefix: it is the answer that shows nothing.
_LISTINGS = frozenset(
    ("ListMultipartUploads", "ListObjectVersions", "ListObjects", "ListObjectsV2")
)


def is_reserved(key: str) -> bool:
    """Whether a key, a prefix or a common prefix is ours."""
    return key.startswith(RESERVED)


def refusal(operation: str, key: str) -> S3Error | None:
    """What answers `operation` on `key` not asked past packs; None where the key is anybody's."""
    if not key.startswith(RESERVED) or operation in _LISTINGS:
        return None
    if operation == "ListParts":
        return NoSuchUpload()
    if operation.startswith(_LOOKS):
        return NoSuchKey(fields={"Key": key})
    return AccessDenied(f"Keys under {RESERVED} are reserved: packs lie there.")
