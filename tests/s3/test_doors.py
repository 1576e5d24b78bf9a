"""Doors: addresses are bound or said to be taken; a socket that is shared shares its clients."""

import asyncio
import os
import socket
from pathlib import Path

import pytest

from gateway.config import ConfigError
from gateway.s3.census import Census, make_memory
from gateway.s3.doors import TcpDoor, bind
from tests.waiting import until


class Guest(asyncio.Protocol):
    def __init__(self, guests: list["Guest"]) -> None:
        self._guests = guests

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._guests.append(self)


async def test_a_door_that_binds_itself_tells_its_port() -> None:
    guests: list[Guest] = []
    door = TcpDoor("127.0.0.1:0")
    await door.open(lambda: Guest(guests))
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
        await door.open(lambda guests=guests: Guest(guests))  # type: ignore[misc]
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


async def test_who_has_more_connections_leaves_the_next_to_who_has_fewer_if_he_takes_it() -> None:
    [listener] = bind("127.0.0.1:0", "s3.listen")
    memory = make_memory()
    censuses = [Census(memory, place) for place in (0, 1)]
    by_door: list[list[Guest]] = [[], []]
    doors = [
        TcpDoor("", listeners=[socket.socket(fileno=listener.dup().detach())], census=census)
        for census in censuses
    ]
    for door, guests, census in zip(doors, by_door, censuses, strict=True):

        def make(guests: list[Guest] = guests, census: Census = census) -> Guest:
            census.count(len(guests) + 1)
            return Guest(guests)

        await door.open(make)
    address = listener.getsockname()
    clients = []
    for count in range(1, 21):
        clients.append(socket.create_connection(address))
        await until(lambda count=count: sum(map(len, by_door)) == count)  # type: ignore[misc]
    assert [len(guests) for guests in by_door] == [10, 10]
    # The other is said to take some, and does not: it is too busy, or has been stopped.
    censuses[1].count(0)
    doors[1]._acceptor.close()  # type: ignore[union-attr]
    clients.append(socket.create_connection(address))
    await until(lambda: len(by_door[0]) == 11)
    doors[0].close()
    for client in clients:
        client.close()
    for guest in [*by_door[0], *by_door[1]]:
        guest.transport.close()
    listener.close()
    for census in censuses:
        census.close()
    os.close(memory)


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
