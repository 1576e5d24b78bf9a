"""S3's object checksums: computing, comparing, composing. Pure.

https://docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity.html
"""

import hashlib
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from awscrt import checksums as crt

from gateway.errors import InvalidDigest, InvalidRequest
from gateway.model.objects import ChecksumType

ALGORITHMS = ("CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256")
HEADER_BY_ALGORITHM = {name: f"x-amz-checksum-{name.lower()}" for name in ALGORITHMS}
ALGORITHM_BY_HEADER = {header: name for name, header in HEADER_BY_ALGORITHM.items()}

_SIZE_BYTES = {"CRC32": 4, "CRC32C": 4, "CRC64NVME": 8, "SHA1": 20, "SHA256": 32, "MD5": 16}
_COMBINE: dict[str, Callable[[int, int, int], int]] = {
    "CRC32": crt.combine_crc32,
    "CRC32C": crt.combine_crc32c,
    "CRC64NVME": crt.combine_crc64nvme,
}


class Hasher(Protocol):
    def update(self, data: bytes | bytearray | memoryview, /) -> None: ...
    def digest(self) -> bytes: ...


class _Crc:
    def __init__(self, function: Callable[[bytes, int], int], size_bytes: int) -> None:
        self._function = function
        self._size_bytes = size_bytes
        self._value = 0

    def update(self, data: bytes | bytearray | memoryview, /) -> None:
        self._value = self._function(data, self._value)  # type: ignore[arg-type]

    def digest(self) -> bytes:
        return self._value.to_bytes(self._size_bytes, "big")


def among(headers: Mapping[str, str]) -> dict[str, str]:
    """The object checksums among an answer's headers: algorithm → base64."""
    if not headers:
        return {}
    return {
        algorithm: headers[header]
        for header, algorithm in ALGORITHM_BY_HEADER.items()
        if headers.get(header)
    }


def hasher(algorithm: str) -> Hasher:
    """A running hash of one of ALGORITHMS or "MD5"."""
    match algorithm:
        case "CRC32":
            return _Crc(crt.crc32, 4)
        case "CRC32C":
            return _Crc(crt.crc32c, 4)
        case "CRC64NVME":
            return _Crc(crt.crc64nvme, 8)
        case "SHA1":
            return hashlib.sha1(usedforsecurity=False)
        case "SHA256":
            return hashlib.sha256()
        case "MD5":
            return hashlib.md5(usedforsecurity=False)
        case _:
            raise InvalidRequest(f"Checksum algorithm {algorithm!r} is not supported.")


def encode(digest: bytes) -> str:
    """A digest as S3 writes it: base64."""
    return b64encode(digest).decode("ascii")


def decode(algorithm: str, value: str) -> bytes:
    """The digest in a header's base64 value. InvalidDigest/InvalidRequest where it is none."""
    try:
        digest = b64decode(value.encode("ascii"), validate=True)
    except (Base64Error, ValueError, UnicodeEncodeError) as error:
        raise _invalid(algorithm) from error
    if len(digest) != _SIZE_BYTES[algorithm]:
        raise _invalid(algorithm)
    return digest


def checksum(algorithm: str, data: bytes) -> str:
    """The base64 checksum of `data`."""
    running = hasher(algorithm)
    running.update(data)
    return encode(running.digest())


def default_type(algorithm: str) -> ChecksumType:
    """What S3 makes of a multipart upload that names no checksum type."""
    return "FULL_OBJECT" if algorithm == "CRC64NVME" else "COMPOSITE"


def composite(algorithm: str, parts: Sequence[str]) -> str:
    """The composite checksum of base64 part checksums, in part order: `…-N`."""
    running = hasher(algorithm)
    for value in parts:
        running.update(decode(algorithm, value))
    return f"{encode(running.digest())}-{len(parts)}"


def full_object(algorithm: str, parts: Iterable[tuple[str, int]]) -> str:
    """The checksum of the whole from (base64 checksum, size in bytes) of its parts; CRCs only."""
    combine = _COMBINE.get(algorithm)
    if combine is None:
        raise InvalidRequest(f"The FULL_OBJECT checksum type cannot be used with {algorithm}.")
    value = 0
    for encoded, size_bytes in parts:
        value = combine(value, int.from_bytes(decode(algorithm, encoded), "big"), size_bytes)
    return encode(value.to_bytes(_SIZE_BYTES[algorithm], "big"))


def multipart_etag(part_etags: Sequence[str]) -> str:
    """The ETag S3 gives a multipart object: MD5 of the parts' MD5s, and their count."""
    digest = hashlib.md5(usedforsecurity=False)
    for etag in part_etags:
        digest.update(bytes.fromhex(etag))
    return f"{digest.hexdigest()}-{len(part_etags)}"


def _invalid(algorithm: str) -> InvalidDigest | InvalidRequest:
    if algorithm == "MD5":
        return InvalidDigest("The Content-MD5 you specified is not valid.")
    return InvalidRequest(f"Value for {HEADER_BY_ALGORITHM[algorithm]} header is invalid.")
