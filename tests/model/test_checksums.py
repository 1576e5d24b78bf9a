"""Checksums: known values, any kind of buffer, and the whole from its parts."""

import hashlib
import zlib
from base64 import b64encode
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidDigest, InvalidRequest, S3Error
from gateway.model.checksums import (
    ALGORITHM_BY_HEADER,
    ALGORITHMS,
    HEADER_BY_ALGORITHM,
    checksum,
    composite,
    decode,
    default_type,
    encode,
    full_object,
    hasher,
    multipart_etag,
)

CRCS = ("CRC32", "CRC32C", "CRC64NVME")
KINDS: tuple[Callable[[bytes], bytes | bytearray | memoryview], ...] = (
    bytes,
    bytearray,
    memoryview,
    lambda data: memoryview(b"!" + data)[1:],
)
PARTS = st.lists(st.binary(max_size=200), min_size=1, max_size=8)


# The check values of the CRC catalogue (RFC 3720 for CRC32C), and FIPS 180 for SHA.
@pytest.mark.parametrize(
    ("algorithm", "data", "digest"),
    [
        ("CRC32", b"123456789", "cbf43926"),
        ("CRC32C", b"123456789", "e3069283"),
        ("CRC64NVME", b"123456789", "ae8b14860a799888"),
        ("CRC32C", bytes(32), "8a9136aa"),
        ("CRC32C", b"\xff" * 32, "62a8ab43"),
        ("CRC32C", bytes(range(32)), "46dd794e"),
        ("SHA1", b"abc", "a9993e364706816aba3e25717850c26c9cd0d89d"),
        ("SHA256", b"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
        ("MD5", b"abc", "900150983cd24fb0d6963f7d28e17f72"),
        ("CRC32", b"", "00000000"),
        ("CRC32C", b"", "00000000"),
        ("CRC64NVME", b"", "0000000000000000"),
        ("MD5", b"", "d41d8cd98f00b204e9800998ecf8427e"),
    ],
)
def test_known_values(algorithm: str, data: bytes, digest: str) -> None:
    running = hasher(algorithm)
    running.update(data)
    assert running.digest().hex() == digest
    assert checksum(algorithm, data) == b64encode(bytes.fromhex(digest)).decode()
    assert decode(algorithm, checksum(algorithm, data)) == bytes.fromhex(digest)


def test_an_empty_object_has_the_checksums_that_aws_shows_for_it() -> None:
    assert checksum("CRC32", b"") == "AAAAAA=="
    assert checksum("CRC64NVME", b"") == "AAAAAAAAAAA="
    assert checksum("SHA256", b"") == "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="


@given(st.binary(max_size=500))
def test_crc32_is_zlibs(data: bytes) -> None:
    assert decode("CRC32", checksum("CRC32", data)) == zlib.crc32(data).to_bytes(4, "big")


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "MD5"])
@given(pieces=st.lists(st.binary(max_size=100), max_size=8))
def test_blocks_of_any_kind_and_size_make_one_hash(algorithm: str, pieces: list[bytes]) -> None:
    whole = checksum(algorithm, b"".join(pieces))
    for kind in KINDS:
        running = hasher(algorithm)
        for piece in pieces:
            running.update(kind(piece))
        assert encode(running.digest()) == whole


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "MD5"])
def test_a_digest_may_be_looked_at_on_the_way(algorithm: str) -> None:
    running = hasher(algorithm)
    running.update(b"a")
    assert encode(running.digest()) == checksum(algorithm, b"a")
    running.update(b"b")
    assert encode(running.digest()) == checksum(algorithm, b"ab")


@pytest.mark.parametrize("algorithm", CRCS)
@given(parts=PARTS)
def test_the_whole_has_the_checksum_of_its_parts_combined(
    algorithm: str, parts: list[bytes]
) -> None:
    pieces = [(checksum(algorithm, part), len(part)) for part in parts]
    assert full_object(algorithm, pieces) == checksum(algorithm, b"".join(parts))


@pytest.mark.parametrize("algorithm", CRCS)
def test_parts_larger_than_four_gib_combine(algorithm: str) -> None:
    """The zeros of 5 GiB, put together once from halves and once from unequal parts."""
    gib = 1 << 30
    one_kib = checksum(algorithm, bytes(1024))
    value, size_bytes = one_kib, 1024
    sizes = {size_bytes: value}
    while size_bytes < 4 * gib:
        value = full_object(algorithm, [(value, size_bytes)] * 2)
        size_bytes *= 2
        sizes[size_bytes] = value
    first = full_object(algorithm, [(sizes[gib], gib), (sizes[4 * gib], 4 * gib)])
    second = full_object(algorithm, [(sizes[4 * gib], 4 * gib), (sizes[gib], gib)])
    assert first == second != sizes[4 * gib]


@pytest.mark.parametrize("algorithm", ["SHA1", "SHA256"])
def test_a_sha_of_the_whole_cannot_be_had_from_parts(algorithm: str) -> None:
    with pytest.raises(InvalidRequest, match=f"FULL_OBJECT .* {algorithm}"):
        full_object(algorithm, [(checksum(algorithm, b"a"), 1)])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(parts=PARTS)
def test_a_composite_is_the_checksum_of_checksums_and_their_count(
    algorithm: str, parts: list[bytes]
) -> None:
    values = [checksum(algorithm, part) for part in parts]
    raw = b"".join(decode(algorithm, value) for value in values)
    assert composite(algorithm, values) == f"{checksum(algorithm, raw)}-{len(parts)}"


def test_types_that_s3_gives_uploads_that_name_none() -> None:
    """https://docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity-upload.html"""
    assert {name: default_type(name) for name in ALGORITHMS} == {
        "CRC32": "COMPOSITE",
        "CRC32C": "COMPOSITE",
        "CRC64NVME": "FULL_OBJECT",
        "SHA1": "COMPOSITE",
        "SHA256": "COMPOSITE",
    }


def test_the_etag_of_a_multipart_object() -> None:
    # The two parts and the ETag that moto's own test of multipart uploads expects.
    etags = [hashlib.md5(part).hexdigest() for part in (b"0" * 256, b"1")]
    assert multipart_etag(etags) == "66d1a1a2ed08fd05c137f316af4ff255-2"


@given(PARTS)
def test_the_etag_of_a_multipart_object_is_the_md5_of_its_parts_md5s(parts: list[bytes]) -> None:
    digests = [hashlib.md5(part) for part in parts]
    joined = hashlib.md5(b"".join(digest.digest() for digest in digests)).hexdigest()
    assert multipart_etag([d.hexdigest() for d in digests]) == f"{joined}-{len(parts)}"


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "MD5"])
@pytest.mark.parametrize(
    "mangle",
    [
        lambda value: "",
        lambda value: "====",
        lambda value: value[:-4],
        lambda value: value + "AAAA",
        lambda value: value + "-2",
        lambda value: " " + value,
        lambda value: value + "\n",
        lambda value: value.replace("=", ""),
        lambda value: "!" + value[1:],
        lambda value: "é" + value[1:],
        lambda value: "\ud800" + value[1:],
        lambda value: "A" * 100_000,
    ],
)
def test_what_is_no_checksum_is_refused(algorithm: str, mangle: Callable[[str], str]) -> None:
    with pytest.raises(InvalidDigest if algorithm == "MD5" else InvalidRequest) as refused:
        decode(algorithm, mangle(checksum(algorithm, b"abc")))
    named = "Content-MD5" if algorithm == "MD5" else HEADER_BY_ALGORITHM[algorithm]
    assert named in refused.value.message
    assert refused.value.status == 400


@given(st.sampled_from([*ALGORITHMS, "MD5"]), st.text() | st.text("AZaz09+/=-_ ", max_size=50))
def test_any_text_is_a_checksum_or_refused(algorithm: str, value: str) -> None:
    try:
        digest = decode(algorithm, value)
    except S3Error:
        return
    assert len(digest) == len(hasher(algorithm).digest())


def test_an_unknown_algorithm_is_refused() -> None:
    for name in ("CRC16", "crc32", "", "SHA512"):
        with pytest.raises(InvalidRequest):
            hasher(name)


def test_headers_and_algorithms_name_each_other() -> None:
    assert HEADER_BY_ALGORITHM["CRC64NVME"] == "x-amz-checksum-crc64nvme"
    for algorithm in ALGORITHMS:
        assert ALGORITHM_BY_HEADER[HEADER_BY_ALGORITHM[algorithm]] == algorithm
