"""Memory that objects are read into and written from: this process's own, or a device's.

Memory is registered with a client's device at its first use in a process. Whatever cannot be
registered is still good for HTTP, as long as the processor can reach it.
"""

import ctypes
import weakref
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol, Self

from feedrack.errors import WrongMemory
from feedrack.rdma.opening import Opened
from gateway.rdma.device import Device, Registration

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

CopyIn = Callable[[int, bytes], None]
CopyOut = Callable[[int, int], bytes]

# What is copied at a time to and from memory that the processor cannot reach.
_PIECE_BYTES = 4 * 1024**2
# What an address can tell apart.
_SPACE = 1 << 64


class Readable(Protocol):
    """A body that is being received."""

    def read(self, size: int, /) -> bytes: ...

    def readinto(self, into: memoryview, /) -> int: ...


class Area:
    """A whole run of memory, and its registrations: one a device, that is one a client and process.

    `view` where the processor reaches it, else functions that copy."""

    def __init__(
        self,
        size_bytes: int,
        make: Callable[[Device], Registration],
        *,
        view: memoryview | None = None,
        copy_in: CopyIn | None = None,
        copy_out: CopyOut | None = None,
    ) -> None:
        self.size_bytes = size_bytes
        self.view = view
        self.copy_in = copy_in
        self.copy_out = copy_out
        self._make = make
        # A device that was closed is forgotten with whoever had it open.
        self._registered: weakref.WeakKeyDictionary[Opened, Registration] = (
            weakref.WeakKeyDictionary()
        )

    def registered(self, opened: Opened) -> Registration:
        """This memory as that device knows it. VerbFailed."""
        found = self._registered.get(opened)
        if found is not None:
            return found
        # Threads that come at once each register it; one of theirs is kept.
        fresh = opened.register(self._make)
        kept = self._registered.setdefault(opened, fresh)
        if kept is not fresh:
            opened.unregister(fresh)
        return kept

    def close(self) -> None:
        """Ends its registrations. Safe to call twice."""
        # Taken at once: other threads may add to it meanwhile.
        for reference in self._registered.keyrefs():
            opened = reference()
            registration = None if opened is None else self._registered.pop(opened, None)
            if opened is not None and registration is not None:
                opened.unregister(registration)


class Memory:
    """Registered memory, or a part of some: `memory[a:b]` is a part, of bytes.

    `close`, or the end of a `with`, ends the registration of all of it, parts included."""

    def __init__(self, area: Area, start: int = 0, size_bytes: int | None = None) -> None:
        self._area = area
        self._start = start
        self.size_bytes = area.size_bytes if size_bytes is None else size_bytes

    def __repr__(self) -> str:
        return f"<memory of {self.size_bytes} bytes>"

    def __len__(self) -> int:
        return self.size_bytes

    def __getitem__(self, part: slice) -> "Memory":
        """A part, from byte to byte."""
        start, end, step = part.indices(self.size_bytes)
        if step != 1:
            raise WrongMemory("a part of memory is one run of bytes")
        return Memory(self._area, self._start + start, max(0, end - start))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the registration: no gateway reads or writes the memory any more. Safe to call
        twice. Memory that is used again is registered again."""
        self._area.close()

    @property
    def view(self) -> memoryview | None:
        """The memory itself; None where the processor cannot reach it."""
        whole = self._area.view
        return None if whole is None else whole[self._start : self._start + self.size_bytes]

    def locate(self, opened: Opened) -> tuple[int, int]:
        """Address and key of this part, for the peer of that device. VerbFailed."""
        registration = self._area.registered(opened)
        return registration.address + self._start, registration.rkey

    def receive(self, body: Readable, size_bytes: int) -> int:
        """Takes so many bytes of a body, and says how many came. WrongMemory where they do not fit
        or cannot be put there."""
        if size_bytes > self.size_bytes:
            raise WrongMemory(f"{size_bytes} bytes do not fit in {self.size_bytes}")
        view, came = self.view, 0
        while came < size_bytes:
            if view is not None:
                count = body.readinto(view[came:size_bytes])
            else:
                piece = body.read(min(_PIECE_BYTES, size_bytes - came))
                self.put(came, piece)
                count = len(piece)
            if not count:
                break
            came += count
        return came

    def put(self, offset: int, data: bytes) -> None:
        """Copies bytes there. WrongMemory."""
        view = self.view
        if view is not None:
            view[offset : offset + len(data)] = data
        elif self._area.copy_in is not None:
            self._area.copy_in(self._start + offset, data)
        else:
            raise WrongMemory("this memory is out of the processor's reach, and has no `copy`")

    def contents(self) -> bytes | memoryview:
        """The bytes that are there, to be sent. WrongMemory."""
        view = self.view
        return view if view is not None else b"".join(self._pieces())

    def crc32(self) -> int:
        """The CRC-32 of the bytes that are there. WrongMemory."""
        view = self.view
        if view is not None:
            return zlib.crc32(view)
        found = 0
        for piece in self._pieces():
            found = zlib.crc32(piece, found)
        return found

    def _pieces(self) -> Iterator[bytes]:
        copy_out = self._area.copy_out
        if copy_out is None:
            raise WrongMemory("this memory is out of the processor's reach, and has no `read`")
        for start in range(0, self.size_bytes, _PIECE_BYTES):
            size = min(_PIECE_BYTES, self.size_bytes - start)
            yield copy_out(self._start + start, size)


def of_buffer(buffer: "WriteableBuffer") -> Memory:
    """Memory of an object with the buffer protocol: bytearray, mmap, an array. WrongMemory."""
    view = memoryview(buffer)
    if view.readonly or not view.c_contiguous:
        raise WrongMemory("the buffer is read-only, or not one run of bytes")
    # An array with a side of no length cannot be cast.
    view = view.cast("B") if view.nbytes else memoryview(bytearray())
    return Memory(Area(view.nbytes, lambda device: device.register(view, remote=True), view=view))


def of_address(
    address: int, size_bytes: int, copy: CopyIn | None = None, read: CopyOut | None = None
) -> Memory:
    """Memory by its address. With `copy` or `read` the processor stays away from it itself.

    WrongMemory."""
    _check_place(address, size_bytes)

    def make(device: Device) -> Registration:
        return device.register_address(address, size_bytes, remote=True)

    if copy is not None or read is not None:
        return Memory(Area(size_bytes, make, copy_in=copy, copy_out=read))
    view = memoryview((ctypes.c_char * size_bytes).from_address(address)).cast("B")
    return Memory(Area(size_bytes, make, view=view))


def of_dmabuf(
    descriptor: int,
    offset: int,
    size_bytes: int,
    copy: CopyIn | None = None,
    read: CopyOut | None = None,
) -> Memory:
    """A part of a dma-buf, which the processor does not reach by itself. WrongMemory."""
    _check_place(offset, size_bytes)

    def make(device: Device) -> Registration:
        return device.register_dmabuf(descriptor, offset, size_bytes, remote=True)

    return Memory(Area(size_bytes, make, copy_in=copy, copy_out=read))


def _check_place(start: int, size_bytes: int) -> None:
    if start < 0 or size_bytes < 0 or start + size_bytes > _SPACE:
        raise WrongMemory(f"there is no memory of {size_bytes} bytes from {start} on")
