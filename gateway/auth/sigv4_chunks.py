"""The chain of signatures within an aws-chunked body. Pure.

https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-streaming.html
https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-streaming-trailers.html
"""

from hashlib import sha256

from gateway.auth.signing import ALGORITHM, SigningKey, same
from gateway.errors import SignatureDoesNotMatch

_EMPTY_SHA256 = sha256().hexdigest()


class ChunkSigner:
    """Verifies one body's chunks in order, each signature over the one before it."""

    __slots__ = ("_key", "_previous", "_scope", "_timestamp")

    def __init__(self, key: SigningKey, timestamp: str, scope: str, seed_signature: str) -> None:
        self._key = key
        self._timestamp = timestamp
        self._scope = scope
        self._previous = seed_signature

    def verify_chunk(self, sha256_hex: str, signature: str) -> None:
        """Nothing where the next chunk, of this hash, is signed so. SignatureDoesNotMatch."""
        self._verify("PAYLOAD", f"{_EMPTY_SHA256}\n{sha256_hex}", signature)

    def verify_trailer(self, sha256_hex: str, signature: str) -> None:
        """Nothing where the trailer, of this hash, is signed so. SignatureDoesNotMatch.

        The hash is over `name:value` and a line feed for every trailing header, in order.
        """
        self._verify("TRAILER", sha256_hex, signature)

    def _verify(self, kind: str, hashes: str, signature: str) -> None:
        message = (
            f"{ALGORITHM}-{kind}\n{self._timestamp}\n{self._scope}\n{self._previous}\n{hashes}"
        )
        expected = self._key.sign(message)
        if not same(expected, signature):
            raise SignatureDoesNotMatch(fields={"StringToSign": message})
        self._previous = expected
