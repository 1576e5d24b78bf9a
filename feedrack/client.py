"""Requests to one bucket: kept connections, signatures, retries.

Over http.client, because a worker process should start in milliseconds and its requests are few
and large. A connection belongs to the process that opened it and to one thread at a time: after a
fork the child leaves its parent's connections alone and opens its own.
"""

import hashlib
import http.client
import os
import random
import re
import select
import socket
import ssl
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from feedrack.endpoint import Access, Endpoint, find_endpoint, find_profile
from feedrack.errors import (
    AccessRefused,
    FeedrackError,
    MissingBucket,
    MissingObject,
    ObjectChanged,
    RangeOutside,
    RequestRefused,
    Unavailable,
)
from feedrack.signing import EMPTY_SHA256, Query, Signer, encode_query

_RETRIED = frozenset((408, 429, 500, 502, 503, 504))
_ERROR_BYTES = 64 * 1024
_LONGEST_PAUSE_SECONDS = 8.0
_MOST_DOUBLINGS = 32
_CODE = re.compile(rb"<Code>([A-Za-z0-9]{1,64})</Code>")
_MESSAGE = re.compile(rb"<Message>([^<]{1,400})</Message>")
TROUBLE = (OSError, http.client.HTTPException)


class Answer(NamedTuple):
    """An answer in whole: header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class Streamed(NamedTuple):
    """An answer whose body is still to be read."""

    status: int
    headers: dict[str, str]
    body: http.client.HTTPResponse


class _Idle:
    """Connections that wait for their next request, with the process that opened them."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.connections: list[http.client.HTTPConnection] = []

    def close(self) -> None:
        while self.connections:
            self.connections.pop().close()


class Client:
    """Requests to one bucket, from any number of threads and after any fork.

    Raises WrongAddress and NoCredentials when it is made, and the errors of its requests: see
    `refusal`, and Unavailable once `access.attempts` have failed."""

    def __init__(
        self, bucket: str, access: Access, *, pause: Callable[[float], None] = time.sleep
    ) -> None:
        profile = find_profile(access)
        self.access = access
        self.endpoint: Endpoint = find_endpoint(bucket, access, profile)
        given = access.credentials
        if access.anonymous:
            ask = None
        else:
            ask = (lambda: given) if given is not None else profile.credentials()
        self._signer = Signer(self.endpoint.host_header, self.endpoint.region, ask)
        self._service_signer = Signer(self.endpoint.service_host_header, self.endpoint.region, ask)
        self._pause = pause
        self._tls: ssl.SSLContext | None = None
        if self.endpoint.tls:
            self._tls = ssl.create_default_context(cafile=self.endpoint.ca_file)
        self._idle = _Idle()
        self._finalizer = weakref.finalize(self, _Idle.close, self._idle)
        # None until an answer has told.
        self.is_gateway: bool | None = None

    def __repr__(self) -> str:
        return f"Client({self.endpoint.bucket!r}, {self.endpoint.host_header!r})"

    def ask(
        self,
        method: str,
        key: str | None,
        query: Query = (),
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> Answer:
        """The answer that succeeded, in whole. Asked again while the endpoint is in trouble."""

        def once() -> Answer:
            with self.open(method, key, query, headers, body) as streamed:
                return Answer(streamed.status, streamed.headers, streamed.body.read())

        answer = self.patiently(once, f"{method} {key or self.endpoint.bucket}")
        if answer.status >= 300:
            raise refusal(answer, self.endpoint.bucket, key)
        return answer

    def read(self, key: str, byte_range: str | None = None, *, etag: str | None = None) -> bytes:
        """One object, or the part of it that a Range header's value names.

        ObjectChanged where it has another ETag than `etag` (unquoted)."""
        headers = {} if byte_range is None else {"range": byte_range}
        if etag:
            headers["if-match"] = f'"{etag}"'
        answer = self.ask("GET", key, headers=headers)
        if byte_range is not None and answer.status != 206:
            raise RequestRefused("the endpoint does not answer ranges", key=key)
        return answer.body

    def finds_gateway(self) -> bool:
        """Whether a feedrack gateway answers here; asked by a HeadBucket where no answer has told.

        Unavailable."""
        if self.is_gateway is None:
            try:
                self.ask("HEAD", None)
            except Unavailable:
                raise
            except FeedrackError:
                # Whatever it answers says who it is.
                return bool(self.is_gateway)
        return bool(self.is_gateway)

    def patiently(self, once: Callable[[], Answer], what: str) -> Answer:
        """`once`, until it brings an answer that is not a passing trouble's, or too often."""
        attempt = 1
        while True:
            try:
                answer = once()
            except TROUBLE as error:
                if attempt >= self.access.attempts:
                    raise Unavailable(f"{what}: {error!r}, {attempt} times") from error
            else:
                if answer.status not in _RETRIED:
                    return answer
                if attempt >= self.access.attempts:
                    raise Unavailable(f"{what}: {answer.status} {said_of(answer)}, {attempt} times")
            self.wait(attempt)
            attempt += 1

    def wait(self, attempt: int) -> None:
        """Pauses after a failed attempt, counted from 1."""
        # Full jitter: many workers meet the same trouble at the same moment.
        longest = min(_LONGEST_PAUSE_SECONDS, 0.1 * 2.0 ** min(attempt, _MOST_DOUBLINGS))
        self._pause(random.uniform(0, longest))  # noqa: S311

    @contextmanager
    def open(
        self,
        method: str,
        key: str | None,
        query: Query = (),
        headers: Mapping[str, str] | None = None,
        body: bytes | memoryview = b"",
        *,
        sha256: str | None = None,
        singly: bool = False,
        more_seconds: float = 0.0,
    ) -> Iterator[Streamed]:
        """One request, once; its connection is kept if the answer was read to its end.

        `sha256`: what is signed for the body's. `singly`: it never goes out twice, also where a
        kept connection turns out to have ended. `more_seconds`: how much longer than
        `access.timeout_seconds` the answer may be in beginning. Raises TROUBLE."""
        target, sent = self._head(method, key, query, headers or {}, body, sha256)
        with self._exchange(
            method, target, sent, body, singly=singly, more_seconds=more_seconds
        ) as streamed:
            yield streamed

    def ask_service(self, query: Query, body: bytes) -> Answer:
        """The answer to a POST to the service itself, of no bucket, whatever it is. Asked once.

        Raises TROUBLE."""
        path, text = self.endpoint.service_path, encode_query(query)
        headers = {"content-type": "application/json"}
        sent = self._service_signer.headers(
            "POST", path, text, headers, hashlib.sha256(body).hexdigest()
        )
        sent["content-length"] = str(len(body))
        with self._exchange("POST", f"{path}?{text}", sent, body, singly=True) as streamed:
            return Answer(streamed.status, streamed.headers, streamed.body.read())

    @contextmanager
    def _exchange(
        self,
        method: str,
        target: str,
        sent: Mapping[str, str],
        body: bytes | memoryview,
        *,
        singly: bool,
        more_seconds: float = 0.0,
    ) -> Iterator[Streamed]:
        connection, response = self._send(
            method, target, sent, body, singly=singly, more_seconds=more_seconds
        )
        kept = False
        try:
            found = {name.lower(): value for name, value in response.getheaders()}
            self.is_gateway = self.is_gateway or "x-feedrack-node" in found
            yield Streamed(response.status, found, response)
            kept = response.isclosed() and not response.will_close
        finally:
            if kept and self._idle.process == os.getpid():
                self._idle.connections.append(connection)
            else:
                response.close()
                connection.close()

    def _send(
        self,
        method: str,
        target: str,
        sent: Mapping[str, str],
        body: bytes | memoryview,
        *,
        singly: bool,
        more_seconds: float,
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        while True:
            connection, fresh = self._connection()
            if singly and not fresh and _has_ended(connection):
                connection.close()
                continue
            try:
                connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
                for name, value in sent.items():
                    connection.putheader(name, value)
                connection.endheaders(body or None)
                return connection, self._response(connection, more_seconds)
            except BaseException as error:
                connection.close()
                # The endpoint may close a connection that rests; that is no trouble of its.
                gone = isinstance(error, ConnectionError | http.client.BadStatusLine)
                if fresh or singly or not gone:
                    raise

    def _response(
        self, connection: http.client.HTTPConnection, more_seconds: float
    ) -> http.client.HTTPResponse:
        # The connection lets go of it where the answer says that it is the last.
        sock, seconds = connection.sock, self.access.timeout_seconds
        sock.settimeout(seconds + more_seconds)
        response = connection.getresponse()
        sock.settimeout(seconds)
        return response

    def _connection(self) -> tuple[http.client.HTTPConnection, bool]:
        idle = self._idle
        if idle.process != os.getpid():
            # The parent's: only our copies of the descriptors are closed, and nothing is sent.
            idle.close()
            idle.process = os.getpid()
        try:
            # The last one back is the last that the endpoint may have closed.
            return idle.connections.pop(), False
        except IndexError:
            pass
        host, port, seconds = self.endpoint.host, self.endpoint.port, self.access.timeout_seconds
        connection = (
            http.client.HTTPConnection(host, port, timeout=seconds)
            if self._tls is None
            else http.client.HTTPSConnection(host, port, timeout=seconds, context=self._tls)
        )
        try:
            connection.connect()
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BaseException:
            connection.close()
            raise
        return connection, True

    def _head(
        self,
        method: str,
        key: str | None,
        query: Query,
        headers: Mapping[str, str],
        body: bytes | memoryview,
        sha256: str | None = None,
    ) -> tuple[str, dict[str, str]]:
        path, text = self.endpoint.path(key), encode_query(query)
        if sha256 is None:
            sha256 = hashlib.sha256(body).hexdigest() if body else EMPTY_SHA256
        sent = self._signer.headers(method, path, text, headers, sha256)
        if method in ("POST", "PUT"):
            sent["content-length"] = str(len(body))
        return f"{path}?{text}" if text else path, sent

    def close(self) -> None:
        """Ends the connections that rest. The next request opens new ones."""
        self._idle.close()


def _has_ended(connection: http.client.HTTPConnection) -> bool:
    """Whether a connection that rests was closed: nothing else makes it readable."""
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))


def refusal(answer: Answer, bucket: str, key: str | None) -> FeedrackError:
    """The error that an answer is."""
    what = f"s3://{bucket}" if key is None else f"s3://{bucket}/{key}"
    said = said_of(answer)
    code = said.partition(":")[0]
    if code == "NoSuchBucket":
        return MissingBucket(f"{what}: {said}", key=key)
    if answer.status == 404 and (key is not None or code == "NoSuchKey"):
        return MissingObject(f"there is no {what}", key=key)
    if answer.status in (401, 403):
        return AccessRefused(f"{what}: {said}", key=key)
    if answer.status == 412:
        return ObjectChanged(f"{what} was replaced while it was read", key=key)
    if answer.status == 416:
        return RangeOutside(f"{what} ends before the range", key=key)
    if answer.status in _RETRIED:
        return Unavailable(f"{what}: {answer.status} {said}", key=key)
    return RequestRefused(f"{what}: {answer.status} {said}", key=key)


def said_of(answer: Answer) -> str:
    """What an error says of itself: its code and message."""
    body = answer.body[:_ERROR_BYTES]
    code, message = _CODE.search(body), _MESSAGE.search(body)
    parts = [found[1].decode("utf-8", "replace") for found in (code, message) if found is not None]
    return ": ".join(parts) or "without a code"
