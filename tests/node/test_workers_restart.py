"""A rolling restart replaces every process and fails no request; a certificate read again serves
the next handshake; neither touches what is open."""

import signal
import socket
import ssl
from pathlib import Path
from typing import Any

import boto3
import pytest
import tomli_w
import trustme
from botocore.config import Config

from tests.node.conftest import MakeNode
from tests.node.family import Family, public
from tests.node.process import ACCESS_KEY, SECRET_KEY, GatewayProcess
from tests.node.test_running import _ask
from tests.node.test_workers_failing import LARGE, loaded
from tests.waiting import wait_until


def _rewrite(running: GatewayProcess, /, **sections: Any) -> None:
    for name, said in sections.items():
        known = running.settings.get(name, {})
        running.settings[name] = {**known, **said} if isinstance(said, dict) else said
    if "s3" not in sections:
        # Where the node was told to listen, not where it does.
        running.settings["s3"]["listen"] = "127.0.0.1:0"
    text = tomli_w.dumps(
        dict(sorted(running.settings.items(), key=lambda item: isinstance(item[1], dict | list)))
    )
    (running.folder / "feedrack.toml").write_text(text)


def _restart(family: Family, count: int) -> None:
    family.node.process.send_signal(signal.SIGUSR2)  # type: ignore[union-attr]
    _await(family, "restarted", count)


def _await(family: Family, event: str, count: int = 1) -> None:
    """Waits for how a restart ends: first for one of its processes, which come up one by one."""
    served = family.logged("process serves")
    wait_until(lambda: family.logged(event) == count or family.logged("process serves") > served)
    wait_until(lambda: family.logged(event) == count, f"the log tells of {event}")


def test_a_rolling_restart_under_load_replaces_all_and_fails_nothing(make_node: MakeNode) -> None:
    node = make_node(public(load={"freshness_seconds": 600}))
    with loaded(node) as (family, load, _):
        for count in (1, 2):
            before = {process.pid for process in family.everyone()[1:]}
            _restart(family, count)
            wait_until(lambda before=before: not before & {p.pid for p in family.everyone()[1:]})  # type: ignore[misc]
            assert len(family.workers) == 2
            client = node.client()
            client.put_object(Bucket="load", Key=f"written{count}", Body=b"x")
            client.close()
        goal = load.answered + 200
        wait_until(lambda: load.answered > goal)
        load.stop()
        assert not load.wrong, load.wrong[:5]
        assert sum(load.broken.values()) == 0
    assert _ask(node, "/readyz", None)[0] == 200
    assert node.stop() == 0


def test_a_download_under_way_outlives_a_rolling_restart(make_node: MakeNode) -> None:
    node = make_node(public(slow={"freshness_seconds": 600}))
    family = Family(node)
    client = node.client()
    client.create_bucket(Bucket="slow")
    body = LARGE * 8
    client.put_object(Bucket="slow", Key="k", Body=body)
    client.close()
    family.hold("/slow/k")
    before = {worker.pid for worker in family.workers}
    with family.clients() as [reader, _]:
        reader.ask("/slow/k")
        assert reader.is_answered(60)
        _restart(family, 1)
        # Both workers are still there, one with its answer and one with an idle client.
        assert before <= {worker.pid for worker in family.workers}
        assert reader.answer()[:2] == (200, body)
    wait_until(lambda: not before & {worker.pid for worker in family.workers})


def test_a_restart_takes_over_what_the_file_says_now(make_node: MakeNode) -> None:
    node = make_node(public())
    family = Family(node)
    client = node.client()
    client.create_bucket(Bucket="later")
    client.put_object(Bucket="later", Key="k", Body=b"x")
    client.close()
    with family.clients() as clients:
        assert clients[0].get("/later/k")[0] == 403
        _rewrite(node, node={"workers": 3}, buckets={"later": {"public_read": True}})
        assert _ask(node, "/v1/restart", method="POST") == (202, {"status": "restarting"})
        _await(family, "restarted")
        # The old worker's last answer on this connection says that it is the last.
        _, _, headers = clients[0].get("/later/k")
        assert headers["connection"] == "close"
        assert clients[0].get("/later/k")[:2] == (200, b"x")
    assert len(family.workers) >= 3
    _rewrite(node, node={"workers": 2})
    _restart(family, 2)
    wait_until(lambda: len(family.workers) == 2)


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"cache": {"colour": 1}}, "cache.colour"),
        ({"s3": {"listen": "127.0.0.1:1"}}, "s3.listen"),
        ({"cache": {"path": "/nowhere"}}, "cache.path"),
        ({"admin": {"token_file": "/nowhere"}}, "admin.token_file"),
    ],
)
def test_a_configuration_that_cannot_be_taken_over_is_refused_and_nothing_changes(
    make_node: MakeNode, sections: dict[str, Any], said: str
) -> None:
    node = make_node(public())
    family = Family(node)
    before = {process.pid for process in family.everyone()}
    _rewrite(node, **sections)
    node.process.send_signal(signal.SIGUSR2)  # type: ignore[union-attr]
    wait_until(lambda: family.logged("not restarted") == 1)
    assert said in node.log.read_text()
    assert {process.pid for process in family.everyone()} == before


def test_a_new_process_that_does_not_serve_takes_the_node_back_to_what_it_was(
    make_node: MakeNode, tmp_path: Path
) -> None:
    node = make_node(public(load={"freshness_seconds": 600}))
    with loaded(node) as (family, load, _):
        # Only the keeper looks at it, after the workers have been replaced already.
        (tmp_path / "file").touch()
        more = {"type": "directory", "path": str(tmp_path / "file")}
        _rewrite(node, origins={"more": more}, default_origin="main")
        node.process.send_signal(signal.SIGUSR2)  # type: ignore[union-attr]
        _await(family, "not restarted")
        goal = load.answered + 300
        wait_until(lambda: load.answered > goal)
        wait_until(lambda: _ask(node, "/readyz", None)[0] == 200)
        load.stop()
        assert not load.wrong, load.wrong[:5]
        assert sum(load.broken.values()) == 0


class Pair:
    """A certificate and its key in files, from an authority of their own each time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings = {
            "s3": {
                "tls_cert_file": str(folder / "cert.pem"),
                "tls_key_file": str(folder / "key.pem"),
            }
        }
        self.write()

    def write(self) -> None:
        authority = trustme.CA()
        issued = authority.issue_cert("127.0.0.1")
        authority.cert_pem.write_to_path(self.folder / "ca.pem")
        issued.cert_chain_pems[0].write_to_path(self.folder / "cert.pem")
        issued.private_key_pem.write_to_path(self.folder / "key.pem")
        self.bytes = ssl.PEM_cert_to_DER_cert(issued.cert_chain_pems[0].bytes().decode())


def _shaken(node: GatewayProcess) -> ssl.SSLSocket:
    """A TLS connection to the node, whoever it is."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    port = int(node.endpoint_url.rpartition(":")[2])
    return context.wrap_socket(socket.create_connection(("127.0.0.1", port), timeout=30))


def _offered(node: GatewayProcess) -> set[bytes | None]:
    """The certificates that a dozen handshakes get."""
    found = set()
    for _ in range(12):
        with _shaken(node) as wire:
            found.add(wire.getpeercert(binary_form=True))
    return found


@pytest.mark.parametrize("workers", [1, 2])
def test_a_certificate_is_read_again_on_sighup_and_a_bad_one_is_not(
    make_node: MakeNode, tmp_path: Path, workers: int
) -> None:
    pair = Pair(tmp_path)
    node = make_node({**pair.settings, **public(tls={}), "node": {"workers": workers}})
    assert node.process is not None
    family = Family(node)
    client = boto3.client(
        "s3",
        endpoint_url=node.endpoint_url,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        region_name="us-east-1",
        verify=str(tmp_path / "ca.pem"),
        config=Config(retries={"max_attempts": 1}),
    )
    client.create_bucket(Bucket="tls")
    client.put_object(Bucket="tls", Key="k", Body=b"secret" * 100_000)
    assert _offered(node) == {pair.bytes}
    with _shaken(node) as wire:
        before = pair.bytes
        pair.write()
        node.process.send_signal(signal.SIGHUP)
        wait_until(lambda: family.logged("certificate reloaded") == workers)
        assert _offered(node) == {pair.bytes} != {before}
        (tmp_path / "key.pem").write_text("no key")
        node.process.send_signal(signal.SIGHUP)
        wait_until(lambda: family.logged("certificate not reloaded") == workers)
        assert _offered(node) == {pair.bytes}
        # A connection from before both goes on.
        wire.sendall(b"GET /tls/k HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = b""
        while block := wire.recv(65_536):
            answer += block
        assert answer.endswith(b"secret" * 100_000)
    assert node.stop() == 0


def test_a_node_without_workers_is_not_restarted_in_parts(node: GatewayProcess) -> None:
    assert node.process is not None
    assert _ask(node, "/v1/restart", method="POST")[0] == 409
    node.process.send_signal(signal.SIGUSR2)
    wait_until(lambda: Family(node).logged("not restarted") == 1)
    assert _ask(node, "/readyz", None)[0] == 200
