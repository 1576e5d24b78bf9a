"""Another process that reads the index: it answers one JSON line to each, and stays until told to
go or killed. Run with the index's path and the bytes of the map to begin with."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import structlog

from gateway.index.reading import HeldReader
from gateway.index.records import Table


def watch(reader: HeldReader, seconds: float, keys: int) -> dict[str, Any]:
    """Reads all keys again and again: each counts up and never down."""
    seen = [-1] * keys
    reads = 0
    backwards = 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for number in range(keys):
            raw = reader.get(Table.SMALL, b"%d" % number)
            if raw is None:
                continue
            turn = int(raw[:8])
            backwards += turn < seen[number] or raw[8:] != bytes(len(raw) - 8)
            seen[number] = turn
            reads += 1
    return {"reads": reads, "backwards": backwards, "damaged": reader.damaged}


def main() -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    reader = HeldReader(Path(sys.argv[1]), map_bytes=int(sys.argv[2]))
    for line in sys.stdin:
        command = json.loads(line)
        answer: Any = None
        match command["do"]:
            case "get":
                raw = reader.get(Table[command["table"]], command["key"].encode())
                answer = None if raw is None else raw.decode()
            case "watch":
                answer = watch(reader, command["seconds"], command["keys"])
            case "die reading":
                # As a process is killed in the middle of a look-up.
                reader.look()
                assert reader._environment is not None
                _held = reader._environment.begin()
                answer = "reading"
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    reader.close()


if __name__ == "__main__":
    main()
