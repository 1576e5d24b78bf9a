"""Doors: addresses are bound or said to be taken; a socket that is shared shares its clients."""

import asyncio
import socket
import time
from pathlib import Path

import pytest

from gateway.config import ConfigError
from gateway.s3.doors import TcpDoor, bind


class Guest(asyncio.Protocol):
    def __init__(self, guests: list["Guest"]) -> None:
        self._guests = guests

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._guests.append(self)


async def until(condition: object) -> None:
    assert callable(condition)
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_door_that_binds_itself_tells_its_port() -> None:
    guests: list[Guest] = []
    door = TcpDoor("127.0.0.1:0")
    await door.open(lambda: Guest(guests), lambda: 0)
    with socket.create_connection(("127.0.0.1", door.port)):
        await until(lambda: guests)
    door.close()
    door.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", door.port))
    guests[0].transport.close()


async def test_doors_of_one_socket_take_one_client_at_a_wake_and_a_closed_one_takes_none() -> None:
    [listener] = bind("127.0.0.1:0", "s3.listen")
    by_door: list[list[Guest]] = [[], []]
    doors = [
        TcpDoor("", listeners=[socket.socket(fileno=listener.dup().detach())]) for _ in range(2)
    ]
    address = listener.getsockname()
    clients = [socket.create_connection(address) for _ in range(10)]
    for door, guests in zip(doors, by_door, strict=True):
        await door.open(lambda guests=guests: Guest(guests), lambda: 100)  # type: ignore[misc]
    await until(lambda: sum(map(len, by_door)) == 10)
    assert [len(guests) for guests in by_door] == [5, 5]
    doors[0].close()
    clients += [socket.create_connection(address) for _ in range(4)]
    await until(lambda: len(by_door[1]) == 9)
    doors[1].close()
    # The socket itself still listens: another process may have it.
    clients.append(socket.create_connection(address))
    for client in clients:
        client.close()
    for guest in [*by_door[0], *by_door[1]]:
        guest.transport.close()
    listener.close()


async def test_a_door_without_room_leaves_clients_to_others_and_takes_what_nobody_takes() -> None:
    [listener] = bind("127.0.0.1:0", "s3.listen")
    rooms = [2, 6]
    by_door: list[list[Guest]] = [[], []]
    doors = [
        TcpDoor("", listeners=[socket.socket(fileno=listener.dup().detach())]) for _ in range(2)
    ]
    address = listener.getsockname()
    clients = [socket.create_connection(address) for _ in range(8)]
    for number, (door, guests) in enumerate(zip(doors, by_door, strict=True)):
        await door.open(
            lambda guests=guests: Guest(guests),  # type: ignore[misc]
            lambda number=number, guests=guests: rooms[number] - len(guests),  # type: ignore[misc]
        )
    await until(lambda: sum(map(len, by_door)) == 8)
    assert [len(guests) for guests in by_door] == [2, 6]
    # Both are full: whoever lets this one in can only tell it so.
    began = time.monotonic()
    clients.append(socket.create_connection(address))
    await until(lambda: sum(map(len, by_door)) == 9)
    assert time.monotonic() - began > 0.9
    # There is room at one of them again, and it is found.
    rooms[0] = 20
    clients += [socket.create_connection(address) for _ in range(10)]
    await until(lambda: sum(map(len, by_door)) == 19)
    assert len(by_door[1]) <= 7
    for door in doors:
        door.close()
    # A door that waits for room and is closed meanwhile takes nothing.
    clients.append(socket.create_connection(address))
    for client in clients:
        client.close()
    for guest in [*by_door[0], *by_door[1]]:
        guest.transport.close()
    listener.close()


def test_all_addresses_of_a_name_are_bound_to_one_port() -> None:
    listeners = bind("localhost:0", "s3.listen")
    assert len({listener.getsockname()[1] for listener in listeners}) == 1
    for listener in listeners:
        listener.close()


def test_an_address_that_is_taken_or_is_none_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OSError, match=f"{listen}: address already in use"):
            bind(listen, "s3.listen")
    with pytest.raises(OSError, match=r"s3\.listen: nowhere\.invalid:1"):
        bind("nowhere.invalid:1", "s3.listen")
    with pytest.raises(ConfigError, match=r"s3\.listen"):
        bind("nowhere", "s3.listen")
