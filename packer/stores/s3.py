"""A bucket at an S3 endpoint, through a gateway or beside it."""

import base64
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from email.utils import mktime_tz, parsedate_tz
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote_plus
from xml.sax.saxutils import escape

from lxml import etree

from packer.stores.protocol import (
    BYPASS,
    BYPASS_HEADER,
    KEPT_HEADERS,
    ConditionFailed,
    Deletion,
    Got,
    Listed,
    ObjectMissing,
    ObjectUnreadable,
    StoreError,
)
from packer.stores.s3_client import Answer, S3Client, Target

_PART_BYTES = 16 * 1024**2
_PARTS_AT_ONCE = 4


class S3Store:
    """One bucket behind an S3 endpoint."""

    def __init__(self, bucket: str, target: Target) -> None:
        self.bucket = bucket
        self.is_gateway = False
        self.bypassed = False
        self._ahead_seconds = 0.0
        self._date = ""
        self._client = S3Client(target)

    @property
    def requests(self) -> int:
        """Requests made so far."""
        return self._client.requests

    def seconds(self) -> float:
        return time.time() + self._ahead_seconds

    def close(self) -> None:
        self._client.close()

    def listing(self, prefix: str) -> Iterator[Listed]:
        # The endpoint looks for a page while what is done with the one before is done.
        with ThreadPoolExecutor(1, thread_name_prefix="list") as thread:
            coming = thread.submit(self._page, prefix, None)
            while True:
                entries, token = coming.result()
                if token is not None:
                    coming = thread.submit(self._page, prefix, token)
                yield from entries
                if token is None:
                    return

    def get(self, key: str, etag: str | None = None) -> Got:
        headers = {"x-amz-checksum-mode": "ENABLED"}
        if etag is not None:
            headers["if-match"] = f'"{etag}"'
        answer = self._client.ask("GET", key, headers=headers)
        self._check(answer, f"read {key}")
        found = answer.headers
        tags = self.tags(key) if found.get("x-amz-tagging-count", "0") != "0" else ()
        return Got(
            answer.body,
            found.get("etag", "").strip('"'),
            kept_headers(found),
            {name: value for name, value in found.items() if name.startswith("x-amz-checksum-")},
            tags,
        )

    def read(self, key: str, offset: int, size_bytes: int) -> bytes:
        if not size_bytes:
            return b""
        span = {"range": f"bytes={offset}-{offset + size_bytes - 1}"}
        answer = self._client.ask("GET", key, headers=span)
        self._check(answer, f"read {key}")
        if answer.status != 206 or len(answer.body) != size_bytes:
            raise StoreError(f"{key}: another range than was asked for")
        return answer.body

    def open(self, key: str, etag: str | None = None) -> BinaryIO:
        condition = {} if etag is None else {"if-match": f'"{etag}"'}
        status, headers, body = self._client.stream(key, condition)
        if status != 200:
            with body:
                self._check(Answer(status, headers, body.read()), f"read {key}")
        return body

    def head(self, key: str) -> Listed:
        answer = self._client.ask("HEAD", key)
        self._check(answer, f"look at {key}")
        found = answer.headers
        return Listed(
            key,
            int(found.get("content-length", 0)),
            found.get("etag", "").strip('"'),
            int(http_seconds(found.get("last-modified")) * 1000),
            found.get("x-amz-storage-class", "STANDARD"),
            kept_headers(found),
        )

    def put(
        self,
        key: str,
        data: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        if_match: str | None = None,
        if_absent: bool = False,
    ) -> str:
        sent = dict(headers or {})
        if if_match is not None:
            sent["if-match"] = f'"{if_match}"'
        if if_absent:
            sent["if-none-match"] = "*"
        for _ in range(20):
            answer = self._client.ask("PUT", key, headers=sent, body=data)
            # S3 says 409 where another conditional write of the key is just under way.
            if answer.status != 409:
                break
            time.sleep(0.05)
        self._check(answer, f"write {key}")
        return answer.headers.get("etag", "").strip('"')

    def put_file(
        self,
        key: str,
        path: Path,
        sent: Callable[[int], None],
        headers: Mapping[str, str] | None = None,
        *,
        if_absent: bool = False,
    ) -> None:
        size = path.stat().st_size
        if size <= _PART_BYTES:
            self.put(key, path.read_bytes(), headers=headers, if_absent=if_absent)
            sent(size)
            return
        if if_absent and self._is_there(key):
            # Said before all of it is sent; the condition below is what holds.
            raise ConditionFailed(f"{key} is there already", 412)
        answer = self._client.ask("POST", key, (("uploads", ""),), headers)
        self._check(answer, f"begin upload of {key}")
        upload = (("uploadId", text(etree.fromstring(answer.body), "UploadId")),)
        try:

            def part(number: int) -> str:
                with path.open("rb") as file:
                    file.seek((number - 1) * _PART_BYTES)
                    data = file.read(_PART_BYTES)
                query = (("partNumber", str(number)), *upload)
                found = self._client.ask("PUT", key, query, body=data)
                self._check(found, f"upload part {number} of {key}")
                sent(len(data))
                return found.headers.get("etag", "").strip('"')

            numbers = range(1, -(-size // _PART_BYTES) + 1)
            with ThreadPoolExecutor(_PARTS_AT_ONCE) as threads:
                etags = list(threads.map(part, numbers))
            parts = "".join(
                f"<Part><PartNumber>{number}</PartNumber><ETag>&quot;{etag}&quot;</ETag></Part>"
                for number, etag in zip(numbers, etags, strict=True)
            )
            body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
            condition = {"if-none-match": "*"} if if_absent else None
            answer = self._client.ask("POST", key, upload, condition, body=body)
            self._check(answer, f"complete upload of {key}")
            # CompleteMultipartUpload can fail under status 200.
            if local_name(etree.fromstring(answer.body)) == "Error":
                self._check(Answer(500, {}, answer.body), f"complete upload of {key}")
        except BaseException:
            self._client.ask("DELETE", key, upload)
            raise

    def delete(self, objects: Sequence[Deletion]) -> list[tuple[str, StoreError]]:
        if not objects:
            return []
        items = "".join(
            f"<Object><Key>{escape(item.key)}</Key>"
            + (f"<ETag>&quot;{escape(item.etag)}&quot;</ETag>" if item.etag is not None else "")
            + "</Object>"
            for item in objects
        )
        if any(not _xml_safe(item.key) for item in objects):
            return self._delete_singly(objects)
        body = f"<Delete>{items}<Quiet>true</Quiet></Delete>".encode()
        md5 = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
        answer = self._client.ask("POST", None, (("delete", ""),), {"content-md5": md5}, body=body)
        self._check(answer, "delete objects")
        failed = []
        for element in etree.fromstring(answer.body):
            if local_name(element) == "Error" and text(element, "Code") != "NoSuchKey":
                key, code = text(element, "Key"), text(element, "Code")
                kind = ConditionFailed if code == "PreconditionFailed" else StoreError
                failed.append((key, kind(f"{key}: {code} {text(element, 'Message')}")))
        return failed

    def conditional_deletes(self, key: str) -> bool:
        self.put(key, b"may deletes have conditions?")
        refused = self.delete([Deletion(key, "0" * 32)])
        self.delete([Deletion(key)])
        return any(isinstance(error, ConditionFailed) for _, error in refused)

    def clean_uploads(self, prefix: str) -> None:
        answer = self._client.ask("GET", None, (("uploads", ""), ("prefix", prefix)))
        if answer.status != 200:
            return
        for element in etree.fromstring(answer.body):
            if local_name(element) == "Upload" and text(element, "Key").startswith(prefix):
                upload = (("uploadId", text(element, "UploadId")),)
                self._client.ask("DELETE", text(element, "Key"), upload)

    def _page(self, prefix: str, token: str | None) -> tuple[list[Listed], str | None]:
        query = [("list-type", "2"), ("encoding-type", "url"), ("prefix", prefix)]
        if token is not None:
            query.append(("continuation-token", token))
        answer = self._client.ask("GET", None, tuple(query))
        self._check(answer, f"list s3://{self.bucket}/{prefix}")
        return parse_listing(answer.body)

    def _is_there(self, key: str) -> bool:
        try:
            self.head(key)
        except ObjectMissing:
            return False
        return True

    def _delete_singly(self, objects: Sequence[Deletion]) -> list[tuple[str, StoreError]]:
        """For keys that XML cannot say."""
        failed = []
        for item in objects:
            condition = {} if item.etag is None else {"if-match": f'"{item.etag}"'}
            answer = self._client.ask("DELETE", item.key, headers=condition)
            if answer.status not in (200, 204, 404):
                failed.append((item.key, failure(answer, f"delete {item.key}")))
        return failed

    def tags(self, key: str) -> tuple[tuple[str, str], ...]:
        answer = self._client.ask("GET", key, (("tagging", ""),))
        self._check(answer, f"read the tags of {key}")
        return tuple(
            (text(tag, "Key"), text(tag, "Value"))
            for tag in etree.fromstring(answer.body).iter()
            if isinstance(tag.tag, str) and local_name(tag) == "Tag"
        )

    def _check(self, answer: Answer, doing: str) -> None:
        date = answer.headers.get("date", "")
        # A date says whole seconds: it is nearest to the truth when it is first seen.
        if date and date != self._date:
            self._ahead_seconds = http_seconds(date) - time.time()
            self._date = date
        if "x-feedrack-node" in answer.headers:
            self.is_gateway = True
            self.bypassed = answer.headers.get(BYPASS_HEADER) == BYPASS
        if 200 <= answer.status < 300:
            return
        if answer.status == 404 and b"<Code>NoSuchBucket</Code>" in answer.body:
            raise StoreError(f"there is no bucket {self.bucket}", 404)
        error = failure(answer, doing)
        if answer.status in (401, 403) and self._client.anonymous:
            raise type(error)(f"{error} (no access key in AWS_* variables or profiles)", 403)
        raise error


def kept_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Of the headers of an answer those that belong to the object."""
    return {
        name: value
        for name, value in headers.items()
        if name in KEPT_HEADERS or name.startswith("x-amz-meta-")
    }


def failure(answer: Answer, doing: str) -> StoreError:
    """The error that an answer means."""
    code = message = ""
    try:
        found = etree.fromstring(answer.body)
        code, message = text(found, "Code"), text(found, "Message")
    except etree.XMLSyntaxError:
        pass
    region = answer.headers.get("x-amz-bucket-region")
    if answer.status in (301, 307, 400) and region is not None:
        message += f" (the bucket is in region {region}: set AWS_REGION)"
    said = f"cannot {doing}: {answer.status} {code} {message}".rstrip()
    if answer.status == 404 and code != "NoSuchBucket":
        return ObjectMissing(said, 404)
    if answer.status in (409, 412):
        return ConditionFailed(said, answer.status)
    if code in ("InvalidObjectState", "AccessDenied") or (answer.status == 400 and not region):
        return ObjectUnreadable(said, answer.status)
    return StoreError(said, answer.status)


def parse_listing(body: bytes) -> tuple[list[Listed], str | None]:
    """The objects of an answer to ListObjectsV2 in `encoding-type=url`, and where to go on.

    StoreError where it is none."""
    entries = []
    token: str | None = None
    try:
        # Twice as fast as iterparse, which stops at every field of every object.
        for element in etree.fromstring(body):
            name = local_name(element)
            if name == "Contents":
                found = {local_name(child): child.text or "" for child in element}
                entries.append(
                    Listed(
                        unquote_plus(found["Key"]),
                        int(found["Size"]),
                        found["ETag"].strip('"'),
                        iso_ms(found["LastModified"]),
                        found.get("StorageClass") or "STANDARD",
                    )
                )
            elif name == "NextContinuationToken":
                token = element.text
    except (etree.XMLSyntaxError, KeyError, ValueError) as error:
        raise StoreError(f"not a listing: {error!r}") from error
    return entries, token


def iso_ms(moment: str) -> int:
    """An ISO 8601 time as S3 writes it, in milliseconds since 1970."""
    return round(datetime.fromisoformat(moment.replace("Z", "+00:00")).timestamp() * 1000)


def http_seconds(date: str | None) -> float:
    """An HTTP date in seconds since 1970; our own clock where there is none."""
    parsed = parsedate_tz(date) if date else None
    return float(mktime_tz(parsed)) if parsed is not None else time.time()


def local_name(element: etree._Element) -> str:
    """An element's name without its namespace: services differ in whether they say one."""
    return str(element.tag).rpartition("}")[2]


def text(element: etree._Element, name: str) -> str:
    """The text of a child; "" where there is none."""
    return next((child.text or "" for child in element if local_name(child) == name), "")


def _xml_safe(key: str) -> bool:
    return all(char >= " " and char not in "\ufffe\uffff" for char in key)
