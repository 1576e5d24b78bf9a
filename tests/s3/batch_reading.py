"""Batches as a client sends and reads them, by docs/batch.md alone."""

import asyncio
import json
import struct
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from tests.s3.running import Reply, Running, Wire

END = 0xFFFFFFFF


class Frame(Struct, frozen=True):
    """One object of a batch, or what took its place."""

    position: int
    status: int
    told: dict[str, Any]
    body: bytes


def parse_frames(data: bytes) -> tuple[list[Frame], dict[str, Any] | None]:
    """The frames of an answer and what its last one tells; None for that where it is cut short."""
    frames: list[Frame] = []
    rest = memoryview(data)
    while len(rest) >= 16:
        position, status, told_bytes, body_bytes = struct.unpack(">IHHQ", rest[:16])
        if len(rest) < 16 + told_bytes + body_bytes:
            return frames, None
        told = json.loads(bytes(rest[16 : 16 + told_bytes]))
        body = bytes(rest[16 + told_bytes : 16 + told_bytes + body_bytes])
        rest = rest[16 + told_bytes + body_bytes :]
        if position == END:
            assert (status, body, len(rest)) == (0, b"", 0)
            return frames, told
        frames.append(Frame(position, status, told, body))
    return frames, None


def document(objects: Sequence[object], **more: Any) -> bytes:
    """A batch's document; an object may be given as its key alone."""
    listed = [{"key": each} if isinstance(each, str) else each for each in objects]
    return json.dumps({"objects": listed, **more}).encode()


class Answered(Struct):
    """An answer's head, and as much of its body as came. `whole`: HTTP says that was all."""

    status: int
    headers: dict[str, str]
    body: bytes
    whole: bool

    @property
    def code(self) -> str:
        return Reply(self.status, self.headers, self.body).code


async def read_head(wire: Wire) -> Answered:
    """The head of the next answer."""
    head = (await wire.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
    return Answered(int(head[0].split()[1]), headers, b"", False)


async def read_body(wire: Wire, answer: Answered) -> Answered:
    """The answer with its body, chunked or not, as far as it comes."""
    blocks: list[bytes] = []
    try:
        if "transfer-encoding" not in answer.headers:
            blocks.append(await wire.reader.readexactly(int(answer.headers["content-length"])))
            answer.whole = True
        while not answer.whole:
            size_bytes = int(await wire.reader.readuntil(b"\r\n"), 16)
            blocks.append((await wire.reader.readexactly(size_bytes + 2))[:-2])
            answer.whole = not size_bytes
    except asyncio.IncompleteReadError as error:
        blocks.append(error.partial)
    except ConnectionError:
        pass
    answer.body = b"".join(blocks)
    return answer


async def read_answer(wire: Wire) -> Answered:
    """The next answer, as far as it comes."""
    return await read_body(wire, await read_head(wire))


async def ask(node: Running, body: bytes, *, bucket: str = "train", **how: Any) -> Answered:
    """The answer to a signed batch."""
    wire = await node.connect()
    await wire.send(node.signed("POST", f"/{bucket}?feedrack-batch", {}, body, **how))
    return await read_answer(wire)


async def frames_of(
    node: Running, objects: Sequence[object], *, bucket: str = "train", **more: Any
) -> tuple[list[Frame], dict[str, Any]]:
    """The frames of a batch that is answered to its end."""
    answer = await ask(node, document(objects, format="frames", **more), bucket=bucket)
    assert (answer.status, answer.whole) == (200, True), answer.body
    assert answer.headers["content-type"] == "application/x-feedrack-frames"
    frames, told = parse_frames(answer.body)
    assert told is not None
    assert [frame.position for frame in frames] == list(range(len(objects)))
    assert told == {
        "objects": len(frames),
        "failed": sum(frame.status not in (200, 206) for frame in frames),
    }
    return frames, told
