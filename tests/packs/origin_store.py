"""The packer's view of a bucket at one of the gateway's origins, past any gateway: so that packer
and gateways can meet over the same directory in one process."""

import asyncio
import io
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from gateway.errors import NoSuchKey, PreconditionFailed, VersionChanged
from gateway.model.body import BytesBody
from gateway.model.conditions import WriteConditions
from gateway.model.objects import ListPage, ObjectRef
from gateway.model.ranges import ByteRange
from gateway.tiers.protocol import Origin
from packer.stores.protocol import (
    ConditionFailed,
    Deletion,
    Got,
    Listed,
    ObjectMissing,
    StoreError,
)

T = TypeVar("T")


class OriginStore:
    """`Store` over an origin that runs on `loop`, which must not be the caller's."""

    is_gateway = False
    bypassed = False

    def __init__(self, origin: Origin, bucket: str, loop: asyncio.AbstractEventLoop) -> None:
        self.bucket = bucket
        self.requests = 0
        # So much later it seems to be: what was left locked is free again.
        self.ahead_seconds = 0.0
        self._origin = origin
        self._loop = loop
        self._counting = threading.Lock()

    def close(self) -> None:
        pass

    def seconds(self) -> float:
        return time.time() + self.ahead_seconds

    def listing(self, prefix: str) -> Iterator[Listed]:
        after: str | None = ""
        while after is not None:
            page: ListPage = self._ask(
                self._origin.list_objects(
                    self.bucket, prefix=prefix, delimiter="", after=after, limit=1000
                )
            )
            for entry in page.objects:
                yield Listed(entry.key, entry.size_bytes, entry.etag, entry.last_modified_ms)
            after = page.next_after

    def get(self, key: str, etag: str | None = None) -> Got:
        async def got() -> Got:
            opened = await self._origin.open(self._ref(key), if_match=etag)
            try:
                data = b"".join([bytes(block) async for block in opened.blocks()])
            finally:
                await opened.close()
            return Got(data, opened.info.etag, dict(opened.info.headers))

        return self._ask(got())

    def read(self, key: str, offset: int, size_bytes: int) -> bytes:
        async def read() -> bytes:
            wanted = ByteRange(offset, offset + size_bytes)
            opened = await self._origin.open(self._ref(key), wanted=wanted)
            try:
                return b"".join([bytes(block) async for block in opened.blocks()])
            finally:
                await opened.close()

        data = self._ask(read()) if size_bytes else b""
        if len(data) != size_bytes:
            raise StoreError(f"{key}: too short")
        return data

    def open(self, key: str, etag: str | None = None) -> BinaryIO:
        return io.BytesIO(self.get(key, etag).data)

    def head(self, key: str) -> Listed:
        info = self._ask(self._origin.head(self._ref(key)))
        return Listed(
            key, info.size_bytes, info.etag, info.last_modified_ms, headers=dict(info.headers)
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
        conditions = WriteConditions(if_match=if_match, if_none_match_any=if_absent)
        put = self._origin.put(self._ref(key), BytesBody(data), dict(headers or {}), conditions)
        return self._ask(put).etag

    def put_file(
        self,
        key: str,
        path: Path,
        sent: Callable[[int], None],
        headers: Mapping[str, str] | None = None,
        *,
        if_absent: bool = False,
    ) -> None:
        self.put(key, path.read_bytes(), headers=headers, if_absent=if_absent)

    def delete(self, objects: Sequence[Deletion]) -> list[tuple[str, StoreError]]:
        failed: list[tuple[str, StoreError]] = []
        for item in objects:
            conditions = WriteConditions(if_match=item.etag)
            try:
                self._ask(self._origin.delete(self._ref(item.key), conditions))
            except ConditionFailed as error:
                failed.append((item.key, error))
            except ObjectMissing:
                pass
        return failed

    def tags(self, key: str) -> tuple[tuple[str, str], ...]:
        return ()

    def conditional_deletes(self, key: str) -> bool:
        return True

    def clean_uploads(self, prefix: str) -> None:
        pass

    def _ref(self, key: str) -> ObjectRef:
        return ObjectRef(self._origin.name, self.bucket, key)

    def _ask(self, question: Coroutine[Any, Any, T]) -> T:
        with self._counting:
            self.requests += 1
        try:
            return asyncio.run_coroutine_threadsafe(question, self._loop).result()
        except NoSuchKey as error:
            raise ObjectMissing(str(error), 404) from error
        except (PreconditionFailed, VersionChanged) as error:
            raise ConditionFailed(str(error), 412) from error
