"""An endpoint that answers by a script, for what no well-behaved service does."""

import json
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, NamedTuple


class Asked(NamedTuple):
    """A request as it came."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


class Reply(NamedTuple):
    """What to answer. `cut`: break the connection off after so many bytes of the body; `hang_up`:
    after the whole answer, without saying so before."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = {}  # noqa: RUF012 - never changed
    cut: int | None = None
    hang_up: bool = False
    chunked: bool = False


class Scripted:
    """The endpoint, and what it was asked."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[Asked] = []
        self.connections = 0


Script = Callable[[Asked], Reply]


@contextmanager
def scripted(script: Script) -> Iterator[Scripted]:
    """An endpoint that answers every request by `script`, until the end."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            found.connections += 1
            super().setup()

        def answer(self) -> None:
            length = int(self.headers.get("content-length", "0"))
            headers = {name.lower(): value for name, value in self.headers.items()}
            asked = Asked(self.command, self.path, headers, self.rfile.read(length))
            found.asked.append(asked)
            reply = script(asked)
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            if reply.chunked:
                self.send_header("transfer-encoding", "chunked")
            else:
                self.send_header("content-length", str(len(reply.body)))
            self.end_headers()
            body = reply.body[: reply.cut]
            if self.command != "HEAD":
                if reply.chunked:
                    for start in range(0, len(body), 1000):
                        piece = body[start : start + 1000]
                        self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                    if reply.cut is None:
                        self.wfile.write(b"0\r\n\r\n")
                else:
                    self.wfile.write(body)
            self.close_connection = reply.cut is not None or reply.hang_up

        def log_message(self, *_: Any) -> None:
            return

    for method in ("GET", "POST", "PUT", "HEAD"):
        setattr(Handler, f"do_{method}", Handler.answer)

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def server_bind(self) -> None:
            # HTTPServer's own looks up a name for its address, which can take seconds.
            TCPServer.server_bind(self)

        def handle_error(self, *_: Any) -> None:
            return

    server = Server(("127.0.0.1", 0), Handler)
    found = Scripted(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def frame_bytes(position: int, status: int, about: object, body: bytes) -> bytes:
    """A frame as the wire has it (docs/batch.md)."""
    said = json.dumps(about).encode()
    return struct.pack(">IHHQ", position, status, len(said), len(body)) + said + body


def frames_answer(objects: Sequence[tuple[int, bytes]]) -> bytes:
    """The frames of a whole answer: status and bytes of each object in turn."""
    failed = sum(status >= 300 for status, _ in objects)
    total = {"objects": len(objects), "failed": failed}
    return b"".join(
        (
            *(
                frame_bytes(number, status, {"code": "Code"} if status >= 300 else {}, body)
                for number, (status, body) in enumerate(objects)
            ),
            frame_bytes(0xFFFFFFFF, 0, total, b""),
        )
    )


FRAMES = {"content-type": "application/x-feedrack-frames", "x-feedrack-node": "n1"}


def batch_reply(asked: Asked, objects: dict[str, bytes], **how: Any) -> Reply:
    """The answer of a gateway to a batch request."""
    keys = [one["key"] for one in json.loads(asked.body)["objects"]]
    found = [(200, objects[key]) if key in objects else (404, b"") for key in keys]
    return Reply(200, frames_answer(found), FRAMES, chunked=True, **how)
