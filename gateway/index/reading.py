"""The index as other processes of the node read it, beside the one that writes (`held.py`).

Only what is committed is seen, a fraction of a second after it was written. The file is mapped as
large as its writer makes it, and opened anew where the writer started over with another one; until
then nothing is found. No transaction outlives its look-up, so no page is kept from being used
again. Made in the process that uses it: LMDB's environments do not survive a fork.
"""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lmdb
import structlog

from gateway.index.records import Table
from gateway.index.sealing import unsealed

# How often it is looked whether the file is still the one that is written.
_LOOK_SECONDS = 0.25
# Beyond what any index takes: address space, not memory. It saves a remapping at every growth.
_MAP_BYTES = 64 * 1024**3

_RESIZES = 10

log = structlog.get_logger()


class HeldReader:
    """The tables of `records.Table`, read-only. Not for several threads.

    `damaged` counts the values found not to match their checksum; `file` is the device and inode of
    the file that is open, None while none is.
    """

    def __init__(
        self,
        path: Path,
        *,
        now: Callable[[], float] = time.monotonic,
        map_bytes: int = _MAP_BYTES,
    ) -> None:
        self._path = path
        self._now = now
        self._map_bytes = map_bytes
        self._environment: lmdb.Environment | None = None
        self._tables: Sequence[Any] = ()
        self.file: tuple[int, int] | None = None
        self._look_at = 0.0
        self._closed = False
        self.damaged = 0

    def get(self, table: Table, key: bytes) -> bytes | None:
        """The value as last committed; None also where there is no index, or none that is whole."""
        if self._now() >= self._look_at:
            self.look()
        try:
            raw = self._committed(table, key)
        except lmdb.Error as error:
            # A page that cannot be followed: the writer meets it too, and starts over.
            log.warning("index let go of", reason=str(error))
            self._let_go()
            return None
        if raw is None:
            return None
        value = unsealed(key, raw)
        if value is None:
            self.damaged += 1
        return value

    def look(self) -> None:
        """Sees to it that the file read is the one that is written now."""
        if self._closed:
            return
        self._look_at = self._now() + _LOOK_SECONDS
        file = self._file_now()
        if self._environment is not None and file != self.file:
            self._let_go()
        if self._environment is None and file is not None:
            self._open(file)

    def close(self) -> None:
        """Lets go of the file; nothing is found from then on."""
        self._closed = True
        self._let_go()
        self._look_at = float("inf")

    def _committed(self, table: Table, key: bytes) -> bytes | None:
        environment = self._environment
        if environment is None:
            return None
        for _ in range(_RESIZES):
            try:
                transaction = environment.begin(self._tables[table])
                break
            except lmdb.MapResizedError:
                # The writer has made it larger than this process has mapped, maybe just again.
                environment.set_mapsize(0)
        else:
            transaction = environment.begin(self._tables[table])
        try:
            raw: bytes | None = transaction.get(key)
        finally:
            transaction.abort()
        return raw

    def _open(self, file: tuple[int, int]) -> None:
        try:
            environment = lmdb.open(
                str(self._path),
                subdir=False,
                map_size=self._map_bytes,
                readonly=True,
                create=False,
                max_dbs=len(Table),
                max_spare_txns=1,
                readahead=False,
            )
        except lmdb.Error as error:
            log.debug("index not readable yet", reason=str(error))
            return
        try:
            tables = [
                environment.open_db(table.name.lower().encode(), create=False) for table in Table
            ]
        except lmdb.Error as error:
            environment.close()
            log.debug("index not readable yet", reason=str(error))
            return
        # It may have been replaced in the meantime. While it is open its number is not used again.
        if self._file_now() != file:
            environment.close()
            self._look_at = 0.0
            return
        self._environment, self._tables, self.file = environment, tables, file

    def _let_go(self) -> None:
        environment, self._environment, self._tables = self._environment, None, ()
        self.file = None
        if environment is not None:
            environment.close()

    def _file_now(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self._path)  # noqa: PTH116 - asked several times a second
        except OSError:
            return None
        return status.st_dev, status.st_ino
