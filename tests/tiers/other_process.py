"""Another process that reads the cache: it answers one JSON line to each, and stays until told to
go or killed. Run with the cache's folder."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import structlog

from gateway.errors import Corrupt
from gateway.model.objects import Span
from gateway.tiers.held_disk import HeldDisk
from gateway.tiers.protocol import SpanReader
from tests.tiers.cached import CHUNK_BYTES, cache_config, chunks, content, version


async def read(disk: HeldDisk, span: Span) -> str | None:
    """How the span was had: sent from its file, read at once ("now") or by a thread, or that it is
    not here; its bytes are compared here."""
    how = "now"
    reader: SpanReader | None = disk.open_now(span)
    if reader is None:
        how = "thread"
        reader = await disk.open(span)
    if reader is None:
        return None
    expected = content(span.version)[span.start : span.stop]
    data = b""
    try:
        region = reader.region(0, span.size_bytes)
        if region is not None and region.size_bytes == span.size_bytes:
            how = "sent"
            data = os.pread(region.descriptor, region.size_bytes, region.offset)
        while len(data) < span.size_bytes:
            block = reader.read_now(len(data), CHUNK_BYTES)
            if block is None:
                how = "thread"
                block = await reader.read(len(data), CHUNK_BYTES)
            data += block
    except Corrupt:
        return "corrupt"
    finally:
        await reader.close()
    return how if data == expected else "wrong"


def removed_files(folder: str) -> int:
    """How many files this process has open that have no name any more."""
    count = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            path = str(descriptor.readlink())
        except FileNotFoundError:
            continue
        count += path.startswith(folder) and path.endswith(" (deleted)") and ".lmdb-" not in path
    return count


async def main() -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    disk = HeldDisk(cache_config(Path(sys.argv[1])), tidy_seconds=0.1)
    await disk.start()
    held: Any = None
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command = json.loads(line)
        answer: Any = None
        match command:
            case {"do": "read", "key": key, "size": size, "etag": etag}:
                answer = [await read(disk, span) for span in chunks(version(key, size, etag))]
            case {"do": "hold", "key": key, "size": size}:
                held = await disk.open(chunks(version(key, size))[0])
                answer = held is not None
            case {"do": "let go"}:
                await held.close()
            case {"do": "recall", "key": key}:
                info = disk.recall(version(key, 0).ref)
                answer = None if info is None else info.etag
            case {"do": "notes"}:
                notes = disk.take_notes()
                answer = {
                    "small_reads": {key.hex(): times for key, times in notes.small_reads.items()},
                    "chunk_uses": {key.hex(): times for key, times in notes.chunk_uses.items()},
                    "corrupt_small": {
                        key.hex(): raw.hex() for key, raw in notes.corrupt_small.items()
                    },
                    "corrupt_chunks": {key.hex(): i for key, i in notes.corrupt_chunks.items()},
                }
            case {"do": "removed"}:
                answer = removed_files(sys.argv[1])
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    await disk.close()


if __name__ == "__main__":
    asyncio.run(main())
