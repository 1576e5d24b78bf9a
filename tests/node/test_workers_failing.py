"""Processes of a node die, drain and are replaced: who has nothing to do with them notices nothing,
no wrong byte is served, and nothing is left behind."""

import http.client
import json
import os
import random
import resource
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from botocore.exceptions import BotoCoreError, ClientError

from tests.node.conftest import MakeNode
from tests.node.family import Client, Family, public
from tests.node.process import GatewayProcess
from tests.node.test_running import _ask
from tests.waiting import wait_until

SMALL = b"s" * 5000
LARGE = random.Random(1).randbytes(3_000_000)


class Load:
    """Clients that read without pause, what is held and what is not. `broken` counts connections
    that broke, `wrong` holds what else was not as it should be."""

    def __init__(self, node: GatewayProcess, clients: list[Client]) -> None:
        self.wrong: list[str] = []
        self.broken: dict[Client, int] = dict.fromkeys(clients, 0)
        self.answered = 0
        self._node = node
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._read, args=(client, number))
            for number, client in enumerate(clients)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(timeout=60)

    def _read(self, client: Client, number: int) -> None:
        rng = random.Random(number)
        while not self._over.is_set():
            # Every other is of a key that no worker can know, so that the keeper is asked.
            path, body = rng.choice(
                [("/load/small", SMALL), ("/load/large", LARGE), (f"/load/no{number}", None)]
            )
            try:
                status, found, _ = client.get(path)
            except (http.client.HTTPException, OSError):
                self.broken[client] += 1
                client.close()
                time.sleep(0.01)
                continue
            self.answered += 1
            if (status, found) != (200, body) and not (status == 404 and body is None):
                self.wrong.append(f"{path}: {status}, {len(found)} bytes: {found[:200]!r}")


@contextmanager
def loaded(node: GatewayProcess, each: int = 3) -> Iterator[tuple[Family, Load, list[Client]]]:
    client = node.client()
    client.create_bucket(Bucket="load")
    client.put_object(Bucket="load", Key="small", Body=SMALL)
    client.put_object(Bucket="load", Key="large", Body=LARGE)
    # An idle connection would keep a worker that retires.
    client.close()
    family = Family(node)
    with family.clients(each) as clients:
        load = Load(node, clients)
        load.start()
        try:
            wait_until(lambda: load.answered > 50)
            yield family, load, clients
        finally:
            load.stop()


@pytest.fixture
def node(make_node: MakeNode) -> GatewayProcess:
    return make_node(public(load={"freshness_seconds": 600}))


def _more(load: Load, count: int = 200) -> None:
    """Waits until that many further answers have been given."""
    goal = load.answered + count
    wait_until(lambda: load.answered >= goal)


def test_a_worker_that_is_killed_breaks_its_own_connections_only_and_is_replaced(
    node: GatewayProcess,
) -> None:
    with loaded(node) as (family, load, clients):
        victim, other = family.workers
        for _ in range(2):
            mine = clients[:3]
            before = {worker.pid for worker in family.workers}
            victim.kill()
            wait_until(lambda before=before: len({w.pid for w in family.workers} - before) == 1)  # type: ignore[misc]
            wait_until(lambda: _ask(node, "/readyz", None)[1].get("ready"))
            _more(load)
            [victim] = [worker for worker in family.workers if worker.pid != other.pid]
        assert not load.wrong
        assert all(load.broken[client] == 0 for client in clients if client not in mine)
    assert _ask(node, "/readyz", None)[0] == 200
    assert node.stop() == 0


@pytest.mark.parametrize("role", ["worker", "keeper"])
def test_a_supervisor_that_can_start_no_process_tries_until_it_can(
    node: GatewayProcess, role: str
) -> None:
    node.client().create_bucket(Bucket="load")
    family = Family(node)
    descriptors = psutil.Process(node.pid).num_fds
    limits = resource.prlimit(node.pid, resource.RLIMIT_NOFILE)
    before = descriptors()
    # Not one descriptor more than it has.
    resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
    victim = family.workers[0] if role == "worker" else family.keeper
    with family.clients(each=2) as clients:
        victim.kill()
        wait_until(lambda: family.logged("process died") >= 4)
        assert node.process is not None
        assert node.process.poll() is None
        assert family.logged("metrics of an ended process kept") == 1
        if role == "worker":
            assert [c.get("/load/none")[0] for c in clients[2:]] == [404, 404]
        resource.prlimit(node.pid, resource.RLIMIT_NOFILE, limits)
        wait_until(lambda: len(family.workers) == 2 and len(family._children("keeper")) == 1)
        wait_until(lambda: _readiness(node) == 200)
    # Of those that the dead one had, none is counted any more.
    wait_until(lambda: node.counter("feedrack_connections") == 0)
    assert descriptors() == before
    client = node.client()
    client.put_object(Bucket="load", Key="small", Body=SMALL)
    assert client.get_object(Bucket="load", Key="small")["Body"].read() == SMALL
    assert node.stop() == 0


def test_a_keeper_that_is_killed_is_replaced_and_no_request_of_a_reader_fails(
    node: GatewayProcess,
) -> None:
    with loaded(node) as (family, load, _):
        for _ in range(3):
            keeper = family.keeper
            keeper.kill()
            wait_until(
                lambda keeper=keeper: any(  # type: ignore[misc]
                    child.pid != keeper.pid for child in family._children("keeper")
                )
            )
            _more(load, 300)
        wait_until(lambda: _ask(node, "/readyz", None)[0] == 200)
        assert not load.wrong, load.wrong[:5]
        # Answers that were on their way break; all others are asked for again.
        assert sum(load.broken.values()) <= 3 * len(load.broken)
    assert node.client().get_object(Bucket="load", Key="large")["Body"].read() == LARGE
    assert node.stop() == 0


def test_writes_across_kills_of_the_keeper_are_kept_once_they_are_answered(
    make_node: MakeNode,
) -> None:
    node = make_node(public(mutable={"freshness_seconds": 600}, fixed={"immutable": True}))
    family = Family(node)
    client = node.client()
    wrong: list[str] = []
    over = threading.Event()
    rounds = 0

    def write(bucket: str) -> None:
        nonlocal rounds
        last: bytes | None = None
        doubt: set[bytes | None] = {None}
        number = 0
        writer = node.client(read_timeout=30)
        while not over.is_set():
            number += 1
            body = f"{bucket} {number} ".encode() * (50_000 if number % 3 else 10)
            try:
                writer.put_object(Bucket=bucket, Key="k", Body=body)
                last, doubt = body, {body}
            except (BotoCoreError, ClientError):
                doubt.add(body)
            try:
                found = writer.get_object(Bucket=bucket, Key="k")["Body"].read()
            except (BotoCoreError, ClientError):
                continue
            if found not in doubt:
                wrong.append(f"{bucket}: read {found[:20]!r}, acknowledged {last and last[:20]!r}")
            rounds += 1

    for bucket in ("mutable", "fixed"):
        client.create_bucket(Bucket=bucket)
    threads = [threading.Thread(target=write, args=(bucket,)) for bucket in ("mutable", "fixed")]
    for thread in threads:
        thread.start()
    for _ in range(4):
        goal = rounds + 30
        wait_until(lambda goal=goal: rounds > goal)  # type: ignore[misc]
        family.keeper.kill()
        wait_until(lambda: len(family._children("keeper")) == 1)
        wait_until(lambda: _readiness(node) == 200)
    over.set()
    for thread in threads:
        thread.join(timeout=60)
    assert not wrong, wrong[:5]


def _readiness(node: GatewayProcess) -> int:
    try:
        return _ask(node, "/readyz", None)[0]
    except OSError:
        return 0


def test_sigterm_lets_every_process_finish_what_is_in_flight(node: GatewayProcess) -> None:
    client = node.client()
    client.create_bucket(Bucket="drain")
    body = random.Random(4).randbytes(30_000_000)
    client.put_object(Bucket="drain", Key="warm", Body=body)
    origin = Path(node.settings["origins"]["main"]["path"])
    (origin / "drain/cold").write_bytes(body)
    streams = [client.get_object(Bucket="drain", Key=key)["Body"] for key in ("warm", "cold")]
    firsts = [stream.read(100_000) for stream in streams]
    everyone = Family(node).everyone()
    statuses: list[int] = []
    stopping = threading.Thread(target=lambda: statuses.append(node.stop()))
    stopping.start()
    wait_until(lambda: b'"draining"' in node.log.read_bytes())
    for first, stream in zip(firsts, streams, strict=True):
        assert first + stream.read() == body
    stopping.join(timeout=60)
    assert statuses == [0]
    assert not any(process.is_running() for process in everyone)


def test_the_drain_call_makes_the_node_unready_and_ends_it(node: GatewayProcess) -> None:
    client = node.client()
    client.create_bucket(Bucket="drain")
    body = b"d" * 30_000_000
    client.put_object(Bucket="drain", Key="k", Body=body)
    stream = client.get_object(Bucket="drain", Key="k")["Body"]
    first = stream.read(100_000)
    assert _ask(node, "/v1/drain", method="POST") == (202, {"status": "draining"})
    wait_until(lambda: _ask(node, "/readyz", None)[1]["state"] == "draining")
    assert first + stream.read() == body
    assert node.process is not None
    assert node.process.wait(timeout=60) == 0


def test_a_signal_to_the_whole_group_drains_in_order(node: GatewayProcess) -> None:
    with loaded(node) as (family, load, _):
        everyone = family.everyone()
        load.stop()
        for process in everyone:
            process.send_signal(signal.SIGTERM)
        assert node.process is not None
        assert node.process.wait(timeout=60) == 0
        assert not any(process.is_running() for process in everyone)


def test_a_supervisor_that_is_killed_leaves_no_process_and_no_folder(
    node: GatewayProcess,
) -> None:
    client = node.client()
    client.create_bucket(Bucket="end")
    body = random.Random(5).randbytes(20_000_000)
    client.put_object(Bucket="end", Key="k", Body=body)
    stream = client.get_object(Bucket="end", Key="k")["Body"]
    first = stream.read(100_000)
    children = Family(node).everyone()[1:]
    folder = _run_folder(children[0])
    assert folder.is_dir()
    node.kill()
    # What was in flight is answered all the same.
    assert first + stream.read() == body
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive
    assert not folder.exists()


def _run_folder(process: psutil.Process) -> Path:
    return Path(process.environ()["PROMETHEUS_MULTIPROC_DIR"]).parent


def test_what_a_family_killed_at_once_leaves_is_removed_by_the_next_start(
    make_node: MakeNode,
) -> None:
    with tempfile.TemporaryDirectory(prefix="run") as base:
        # Not where the nodes of other tests start, and look around.
        node = make_node(public(), environ={"RUNTIME_DIRECTORY": base})
        everyone = Family(node).everyone()
        folder = _run_folder(everyone[1])
        assert folder.parent == Path(base)
        for process in everyone:
            process.suspend()
        for process in everyone:
            process.kill()
        node.kill()
        psutil.wait_procs(everyone, timeout=30)
        assert folder.is_dir()
        node.start()
        assert not folder.exists()
        assert len(list(Path(base).iterdir())) == 1
        assert node.stop() == 0
        assert not list(Path(base).iterdir())


def test_a_child_that_cannot_start_ends_the_node_with_its_message(
    make_node: MakeNode, tmp_path: Path
) -> None:
    first = make_node(public())
    cache = first.settings["cache"]["path"]
    second = GatewayProcess(tmp_path / "second", {**public(), "cache": {"path": cache}})
    with pytest.raises(RuntimeError, match=r"feedrack: .*cache"):
        second.start()
    assert second.process is not None
    assert second.process.wait(timeout=60) == 2
    assert b"Traceback" not in second.log.read_bytes()


def test_requests_that_need_a_keeper_get_503_where_none_comes(make_node: MakeNode) -> None:
    node = make_node(public(load={"freshness_seconds": 600}))
    client = node.client()
    client.create_bucket(Bucket="load")
    client.put_object(Bucket="load", Key="small", Body=SMALL)
    family = Family(node)
    family.hold("/load/small")
    with family.clients() as clients:
        # A supervisor that cannot start another one.
        os.kill(node.pid, signal.SIGSTOP)
        try:
            keeper = family.keeper
            keeper.kill()
            wait_until(lambda: keeper.status() == psutil.STATUS_ZOMBIE)
            began = time.monotonic()
            status, body, headers = clients[0].get("/load/none")
            assert status == 503
            assert b"<Code>ServiceUnavailable</Code>" in body
            assert headers["retry-after"] == "1"
            assert headers["connection"] == "close"
            assert 14 < time.monotonic() - began < 30
            # What is held is served all the while.
            assert clients[1].get("/load/small")[:2] == (200, SMALL)
        finally:
            os.kill(node.pid, signal.SIGCONT)
        assert clients[0].get("/load/none")[0] == 404


def test_the_lines_of_all_processes_are_whole(node: GatewayProcess) -> None:
    with loaded(node) as (_, load, _):
        _more(load, 500)
    node.stop()
    lines = node.log.read_text().splitlines()
    requests = [json.loads(line) for line in lines if line.startswith("{")]
    assert len(requests) == len(lines)
    assert sum(line["event"] == "request" for line in requests) >= load.answered
