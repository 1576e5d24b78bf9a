"""What a client of long life, a slow gateway or a hostile one brings to light."""

import ctypes
import gc
import mmap
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from feedrack.client import Client as HttpClient
from feedrack.endpoint import Access
from feedrack.errors import WrongAddress, WrongMemory
from feedrack.rdma import opening
from feedrack.rdma.arenas import BatchReader
from feedrack.rdma.link import Link
from feedrack.rdma.memory import of_buffer
from feedrack.rdma.opening import NoRdma, Wanted
from gateway.rdma.device import Device, Registration, VerbFailed
from gateway.rdma.token import Token, parse_token
from gateway.rdma.wire import Prepare, Prepared, Row
from tests.feedrack.endpoint import Asked, Reply, batch_reply, scripted
from tests.feedrack.rdma.ends import DATA, GATEWAY, Gateway, client_of, told
from tests.feedrack.rdma.node import RdmaNode
from tests.rdma.soft import Fabric, SoftDevice

MIB = 1024**2
# Fails where something lies there already.
_MAP_FIXED_NOREPLACE = 0x100000


def test_a_gateway_without_rdma_is_no_trouble_for_as_long_as_a_job_runs(fabric: Fabric) -> None:
    """A pause after each try, of a minute at most: a day has more than a thousand."""
    gateway = Gateway(fabric, lambda _: Reply(200, b"", told()))
    gateway.refuse["prepare"] = Reply(501, b"", GATEWAY)
    clock = [0.0]
    with scripted(gateway) as endpoint:
        http = HttpClient("train", Access(endpoint_url=endpoint.url, anonymous=True, attempts=1))
        link = Link(http, Wanted(), now=lambda: clock[0])
        memory = of_buffer(bytearray(10))
        for _ in range(1100):
            clock[0] += 61.0
            with pytest.raises(NoRdma):
                link.lease(memory)
        link.close()
        http.close()


def test_what_does_not_fit_is_told_with_all_after_it_in_any_number_of_requests(
    fabric: Fabric, node: RdmaNode
) -> None:
    node.put("large", bytes(100))
    with client_of(node.url) as client, client.register(bytearray(50)) as memory:
        rows = client.batch_into([*["none"] * 9_999, "large", "k", "k"], memory)
        assert [row.status for row in rows[9_998:]] == [404, 507, 507, 507]


def test_a_transfer_that_goes_on_is_not_given_up(fabric: Fabric, node: RdmaNode) -> None:
    """As over HTTP, where a time limit is for an endpoint that stays silent."""
    data = os.urandom(24 * MIB)
    node.put("big", data)
    with client_of(node.url, timeout_seconds=0.6) as client:
        memory = client.register(bytearray(24 * MIB))
        assert client.get_into("k", memory).transport == "rdma"
        moving: list[float] = []

        def slowly(_: object) -> None:
            # Faster than what is as good as stuck, and longer than the endpoint may be silent.
            moving.append(time.monotonic())
            time.sleep(0.03)

        fabric.on_move = slowly
        result = client.get_into("big", memory)
        fabric.on_move = lambda _: None
        assert memory.contents() == data
        assert result.transport == "rdma"
        assert moving[-1] - moving[0] > 0.6


def test_an_answer_whose_headers_were_lost_is_not_an_empty_object(fabric: Fabric) -> None:
    """A proxy that passes on what it knows alone: the bytes moved, and nobody says so."""
    gateway = Gateway(fabric, lambda _: Reply(200, b"", GATEWAY))
    with scripted(gateway) as endpoint, client_of(endpoint.url) as client:
        memory = client.register(bytearray(10))
        result = client.get_into("k", memory)
        assert result.size_bytes == len(DATA)
        assert memory.contents() == DATA


@pytest.mark.parametrize(
    "answer",
    [
        Reply(200, b'{"objects":[{"status":200,"offset":0,"length":10}],"bytes":10}', GATEWAY),
        Reply(200, b"", GATEWAY),
    ],
)
def test_an_answer_whose_headers_were_lost_is_not_a_batch(fabric: Fabric, answer: Reply) -> None:
    gateway = Gateway(fabric, lambda _: answer)

    def script(asked: Asked) -> Reply:
        by_rdma = "x-amz-rdma-token" in asked.headers or "feedrack-rdma" in asked.target
        if asked.method == "POST" and not by_rdma:
            return batch_reply(asked, {"k": DATA})
        return gateway(asked)

    with scripted(script) as endpoint, client_of(endpoint.url) as client:
        memory = client.register(bytearray(10))
        [row] = client.batch_into(["k"], memory)
        assert row.memory.contents() == DATA
        assert client._link._session is None
        reader = BatchReader(client._http)
        with pytest.raises(NoRdma) as caught:
            list(reader.read(["k"], None))
        assert caught.value.reason == "gateway"
        reader.close()


@pytest.mark.parametrize(
    "prepared",
    [
        b'{"session":"x","address":%s,"idle_seconds":300.0}',
        b'{"session":"00000000000000000000000000000001","address":%s,"idle_seconds":1e400}',
    ],
)
def test_a_session_that_cannot_be_is_not_used(fabric: Fabric, prepared: bytes) -> None:
    gateway = Gateway(fabric, lambda _: Reply(200, b"", told()))
    address = (
        b'{"qpn":17,"psn":1,"gid":"::1","mtu":4096,"link":"ethernet","lid":0,"traffic_class":0}'
    )
    gateway.refuse["prepare"] = Reply(200, prepared % address, GATEWAY)
    with scripted(gateway) as endpoint, client_of(endpoint.url) as client:
        memory = client.register(bytearray(10))
        for _ in range(5):
            result = client.get_into("k", memory)
            assert memory.contents() == DATA
        assert result.transport == "http"
        assert gateway.steps.count("prepare") <= 2


def test_what_cannot_be_meant_is_an_error_of_ours(fabric: Fabric, node: RdmaNode) -> None:
    with client_of(node.url) as client, client.register(bytearray(10)) as memory:
        for part_bytes in (0, -1):
            with pytest.raises(WrongAddress):
                client.upload_from("new", memory, part_bytes)
        for crc32 in (-1, 1 << 32):
            with pytest.raises(WrongAddress):
                client.put_from("new", memory, crc32=crc32)
        for place in ((-1, 10), (4096, -1), (1 << 64, 1)):
            with pytest.raises(WrongMemory):
                client.register_address(*place)
            with pytest.raises(WrongMemory):
                client.register_dmabuf(0, *place)
    assert not (node.folder / "new").exists()


class TwoAnswers:
    """A gateway behind a proxy that asks again what takes long: what it was asked first goes on,
    while the client hears what came of the second."""

    def __init__(self, fabric: Fabric, second: Reply) -> None:
        self.device = fabric.device()
        self.pair = self.device.pair(depth=2, remote=False)
        self.second = second
        self.token: Token | None = None

    def __call__(self, asked: Asked) -> Reply:
        if asked.target.endswith("=prepare"):
            self.pair.connect(msgspec.json.decode(asked.body, type=Prepare).address)
            prepared = Prepared("1" * 32, self.pair.address, 300.0)
            return Reply(200, msgspec.json.encode(prepared), GATEWAY)
        if asked.target.startswith("/?"):
            return Reply(204, b"", GATEWAY)
        if "x-amz-rdma-token" in asked.headers:
            self.token = parse_token(asked.headers["x-amz-rdma-token"])
            return self.second
        return Reply(200, DATA, GATEWAY)

    def go_on(self) -> None:
        """What was asked first reaches the client's memory now."""
        region = self.device.register(memoryview(bytearray(b"overwrites")), remote=False)
        assert self.token is not None
        self.pair.write(
            1, region.address, 10, region.lkey, to=self.token.address, rkey=self.token.rkey
        )


@pytest.mark.parametrize(
    "second",
    [
        Reply(400, b"<Code>InvalidRDMAToken</Code><Message>used before</Message>", GATEWAY),
        Reply(503, b"<Code>SlowDown</Code>", {"x-feedrack-node": "n2"}),
        Reply(200, DATA, {**told("501"), "x-feedrack-node": "n2"}),
        Reply(503, b"<Code>SlowDown</Code><Message>Please reduce your request rate.", GATEWAY),
    ],
    ids=["used before", "another's trouble", "another declines", "too many connections"],
)
def test_memory_is_fenced_where_a_token_may_have_gone_out_twice(
    fabric: Fabric, second: Reply
) -> None:
    gateway = TwoAnswers(fabric, second)
    with scripted(gateway) as endpoint, client_of(endpoint.url) as client:
        target = bytearray(10)
        memory = client.register(target)
        assert client.get_into("k", memory).transport == "http"
        assert target == DATA
        target[:] = b"mine alone"
        gateway.go_on()
        assert target == b"mine alone"


def test_memory_that_cannot_be_had_is_a_reason_to_ask_over_http(
    fabric: Fabric, node: RdmaNode
) -> None:
    with client_of(node.url) as client:
        for size_bytes in (1 << 60, 1 << 70):
            reader = BatchReader(client._http, first_bytes=size_bytes, largest_bytes=size_bytes)
            with pytest.raises(NoRdma) as caught:
                list(reader.read(["k", "k"], None))
            assert caught.value.reason == "memory"
            reader.close()


def test_a_device_that_was_closed_is_asked_for_nothing(fabric: Fabric) -> None:
    """One thread closes a client while another is about to register memory: on a real device that
    is the end of the process."""
    opened = opening.open_once(Wanted())
    opened.close()
    asked = []

    def make(device: Device) -> Registration:
        asked.append(device)
        return device.register(memoryview(bytearray(10)), remote=True)

    with pytest.raises(VerbFailed):
        opened.register(make)
    with pytest.raises(VerbFailed):
        opened.pair()
    assert not asked


def test_a_device_is_closed_once_nobody_is_at_it(fabric: Fabric) -> None:
    opened = opening.open_once(Wanted())
    registering, go_on = threading.Event(), threading.Event()
    open_meanwhile: list[bool] = []

    def quickly(device: Device) -> Registration:
        return device.register(memoryview(bytearray(10)), remote=True)

    def slowly(device: Device) -> Registration:
        assert isinstance(device, SoftDevice)
        registering.set()
        go_on.wait(60)
        open_meanwhile.append(device._open)
        return quickly(device)

    def until_it_refuses() -> None:
        while True:
            opened.unregister(opened.register(quickly))

    device = opened._device
    assert isinstance(device, SoftDevice)
    with ThreadPoolExecutor(3) as threads:
        try:
            made = threads.submit(opened.register, slowly)
            assert registering.wait(60)
            closed = [threads.submit(opened.close) for _ in range(2)]
            with pytest.raises(VerbFailed):
                until_it_refuses()
        finally:
            go_on.set()
        for one in closed:
            one.result(60)
        assert open_meanwhile == [True]
        assert not device._open
        # What came last was ended, too.
        assert not device.regions
        opened.unregister(made.result(60))


def test_a_client_may_be_closed_at_any_moment(fabric: Fabric, node: RdmaNode) -> None:
    with client_of(node.url) as client:
        over = threading.Event()

        def work() -> None:
            while not over.is_set():
                with client.register(bytearray(10)) as memory:
                    client.get_into("k", memory)
                    assert memory.contents() == DATA

        with ThreadPoolExecutor(3) as threads:
            working = [threads.submit(work) for _ in range(3)]
            try:
                for _ in range(20):
                    client.close()
            finally:
                over.set()
            for one in working:
                one.result(60)


def test_a_child_unmaps_nothing_in_the_place_of_its_parents_memory(
    fabric: Fabric, node: RdmaNode
) -> None:
    with client_of(node.url) as client:
        reader = BatchReader(client._http, first_bytes=MIB, largest_bytes=MIB)
        assert len(list(reader.read(["k", "k"], None))) == 2
        # Then no device holds it either.
        reader._link.close()
        [arena] = reader._arenas.free
        place = ctypes.addressof(ctypes.c_char.from_buffer(arena.mapped))
        child = os.fork()
        if child == 0:
            libc = ctypes.CDLL(None)
            libc.mmap.restype = ctypes.c_void_p
            how = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED_NOREPLACE
            prot = mmap.PROT_READ | mmap.PROT_WRITE
            found = libc.mmap(ctypes.c_void_p(place), ctypes.c_size_t(MIB), prot, how, -1, 0)
            taken = True
            try:
                arena.take(Row(200, 0, 1))
            except NoRdma:
                taken = False
            del arena
            gc.collect()
            ctypes.memset(place, 1, MIB)
            os._exit(0 if found == place and not taken else 1)
        # A signal is a negative status: -11 is a segmentation fault.
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        reader.close()


@pytest.mark.parametrize("at", ["its queue pairs", "its registrations"])
def test_a_child_waits_for_no_lock_of_its_parents_threads(fabric: Fabric, at: str) -> None:
    """A fork while another thread connects, in the midst of a request that its child unwinds."""
    opened = opening.open_once(Wanted())
    pair = opened.pair()
    region = opened.register(lambda device: device.register(memoryview(bytearray(9)), remote=True))
    held, over = threading.Event(), threading.Event()

    def connect() -> None:
        users = opened._users
        with users.all_out if at == "its queue pairs" else users._changed:
            held.set()
            over.wait(60)

    thread = threading.Thread(target=connect)
    thread.start()
    held.wait(60)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(3)
        opened.fence(pair)
        opened.unregister(region)
        opened.close()
        try:
            opened.pair()
        except VerbFailed:
            os._exit(0)
        os._exit(1)
    over.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    opened.close()


def test_a_session_in_use_is_not_taken_for_one_that_rests(fabric: Fabric, node: RdmaNode) -> None:
    node.put("k", DATA)
    with client_of(node.url) as client, client.register(bytearray(10)) as memory:
        assert client.get_into("k", memory).transport == "rdma"
        link, ahead = client._link, 0.0
        link._now = lambda: time.monotonic() + ahead
        in_use = link.lease(memory)
        # Longer than any session rests, while that request is under way.
        ahead = 10_000.0
        another = link.lease(memory)
        assert another.session is in_use.session
        link.give_back(another)
        link.give_back(in_use)
        ahead = 20_000.0
        fresh = link.lease(memory)
        assert fresh.session is not in_use.session
        link.give_back(fresh)


def test_memory_forgets_devices_that_were_closed(fabric: Fabric, node: RdmaNode) -> None:
    with client_of(node.url) as client, client.register(bytearray(10)) as memory:
        for _ in range(4):
            assert client.get_into("k", memory).transport == "rdma"
            client.close()
        assert len(memory._area._registered) <= 1
