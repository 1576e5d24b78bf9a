"""Decoding aws-chunked bodies: bytes of the wire in, plain bytes out. Sans I/O.

Three kinds: signed chunks, signed chunks with a signed trailer, unsigned chunks with a trailer.
Chunks of any size pass straight through, so that none is held in memory; what is wrong with a
signed one is told at its last byte. Nothing of a body may be believed before `finish`.

https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-streaming.html
https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-streaming-trailers.html
"""

import re
from collections.abc import Callable, Mapping
from hashlib import sha256

from gateway.auth.sigv4_chunks import ChunkSigner
from gateway.errors import (
    IncompleteBody,
    InvalidChunkSizeError,
    MalformedTrailerError,
)

MIN_CHUNK_BYTES = 8_192
MAX_TRAILER_BYTES = 8_192

_MAX_LINE_BYTES = 256
_HEADER = re.compile(rb"([0-9a-fA-F]{1,16})(?:;chunk-signature=([0-9a-f]{64}))?\r\n")
_TRAILER_NAME = re.compile(r"[a-z0-9-]+")
_TRAILER_SIGNATURE = "x-amz-trailer-signature"


class ChunkedDecoder:
    """Takes the framing off one body of `decoded_length_bytes` plain bytes.

    `signer` is None where chunks are unsigned. `announced` are the names in x-amz-trailer; None
    where the kind of body has no trailer at all. `trailers` is complete after `finish`.
    """

    def __init__(
        self,
        decoded_length_bytes: int,
        *,
        signer: ChunkSigner | None,
        announced: frozenset[str] | None,
    ) -> None:
        self.trailers: Mapping[str, str] = {}
        self._length_bytes = decoded_length_bytes
        self._signer = signer
        self._announced = announced
        self._step: Callable[[bytes, int, list[bytes]], int] = self._take_header
        self._decoded_bytes = 0
        self._number = 0
        self._size_bytes = 0
        self._missing_bytes = 0
        self._signature = ""
        self._hash = sha256()
        self._line = bytearray()
        self._tail = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The plain bytes that `data` completes.

        Raises IncompleteBody on broken framing or a wrong total, InvalidChunkSizeError on a small
        chunk that is not the last, SignatureDoesNotMatch, MalformedTrailerError.
        """
        plain: list[bytes] = []
        position = 0
        while position < len(data):
            position = self._step(data, position, plain)
        return plain

    def finish(self) -> None:
        """Says that the wire has ended. The errors of `feed`; IncompleteBody where it is early."""
        if self._step != self._take_tail:
            raise _broken()
        if self._announced is None:
            if self._tail != b"\r\n":
                raise _broken()
            return
        trailers, signature = _parse_trailer(bytes(self._tail))
        if self._signer is not None:
            if signature is None:
                raise MalformedTrailerError
            signed = "".join([f"{name}:{value}\n" for name, value in trailers.items()])
            self._signer.verify_trailer(sha256(signed.encode("ascii")).hexdigest(), signature)
        elif signature is not None:
            raise MalformedTrailerError
        if trailers.keys() != self._announced:
            raise MalformedTrailerError
        self.trailers = trailers

    def _take_header(self, data: bytes, position: int, plain: list[bytes]) -> int:  # noqa: ARG002
        stop = data.find(b"\n", position, position + _MAX_LINE_BYTES) + 1
        self._line += data[position : stop or position + _MAX_LINE_BYTES]
        if len(self._line) >= _MAX_LINE_BYTES:
            raise _broken()
        if not stop:
            return len(data)
        self._begin(bytes(self._line))
        self._line.clear()
        return stop

    def _begin(self, line: bytes) -> None:
        match = _HEADER.fullmatch(line)
        if match is None or (match[2] is None) != (self._signer is None):
            raise _broken()
        size_bytes = int(match[1], 16)
        if size_bytes and self._number and self._size_bytes < MIN_CHUNK_BYTES:
            raise InvalidChunkSizeError(
                fields={"Chunk": str(self._number + 1), "BadChunkSize": str(self._size_bytes)}
            )
        if self._decoded_bytes + size_bytes > self._length_bytes:
            raise wrong_length(self._length_bytes, self._decoded_bytes + size_bytes)
        if self._signer is not None:
            self._signature = match[2].decode("ascii")
            self._hash = sha256()
        self._number += 1
        self._size_bytes = self._missing_bytes = size_bytes
        self._decoded_bytes += size_bytes
        if size_bytes:
            self._step = self._take_data
            return
        if self._decoded_bytes != self._length_bytes:
            raise wrong_length(self._length_bytes, self._decoded_bytes)
        self._verify_chunk()
        self._step = self._take_tail

    def _take_data(self, data: bytes, position: int, plain: list[bytes]) -> int:
        stop = min(position + self._missing_bytes, len(data))
        piece = data[position:stop]
        self._missing_bytes -= len(piece)
        plain.append(piece)
        if self._signer is not None:
            self._hash.update(piece)
        if not self._missing_bytes:
            self._verify_chunk()
            self._step = self._take_line_end
        return stop

    def _verify_chunk(self) -> None:
        if self._signer is not None:
            self._signer.verify_chunk(self._hash.hexdigest(), self._signature)

    def _take_line_end(self, data: bytes, position: int, plain: list[bytes]) -> int:  # noqa: ARG002
        self._line.append(data[position])
        if not b"\r\n".startswith(self._line):
            raise _broken()
        if len(self._line) == 2:
            self._line.clear()
            self._step = self._take_header
        return position + 1

    def _take_tail(self, data: bytes, position: int, plain: list[bytes]) -> int:  # noqa: ARG002
        self._tail += data[position : position + MAX_TRAILER_BYTES + 1]
        if len(self._tail) > (2 if self._announced is None else MAX_TRAILER_BYTES):
            raise _broken() if self._announced is None else MalformedTrailerError()
        return len(data)


def wrong_length(expected_bytes: int, provided_bytes: int) -> IncompleteBody:
    """The error of a body that is not as long as announced."""
    return IncompleteBody(
        fields={
            "NumberBytesExpected": str(expected_bytes),
            "NumberBytesProvided": str(provided_bytes),
        }
    )


def _parse_trailer(tail: bytes) -> tuple[dict[str, str], str | None]:
    """Trailing headers in order, and the signature apart.

    Lines end in CRLF or LF alone, and blank ones are skipped: AWS's own example has a blank line
    before the signature, and some clients have several at the end. One must be there at the end.
    """
    lines = tail.split(b"\n")
    if len(lines) < 2 or lines[-1] or lines[-2] not in (b"", b"\r"):
        raise _broken()
    trailers: dict[str, str] = {}
    for line in lines:
        if line in (b"", b"\r"):
            continue
        name, colon, value = line.decode("latin-1").partition(":")
        name, value = name.strip().lower(), value.strip()
        if not colon or not _TRAILER_NAME.fullmatch(name) or name in trailers:
            raise MalformedTrailerError
        if _TRAILER_SIGNATURE in trailers or not value.isascii():
            raise MalformedTrailerError
        trailers[name] = value
    return trailers, trailers.pop(_TRAILER_SIGNATURE, None)


def _broken() -> IncompleteBody:
    return IncompleteBody("The request body terminated unexpectedly")
