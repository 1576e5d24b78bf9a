"""Requests are repeated where that can help, and connections kept where they are good."""

import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import trustme

from feedrack.client import Client
from feedrack.endpoint import Access
from feedrack.errors import (
    AccessRefused,
    FeedrackError,
    MissingBucket,
    MissingObject,
    ObjectChanged,
    RangeOutside,
    RequestRefused,
    Unavailable,
)
from tests.feedrack.endpoint import Asked, Reply, Script, scripted


def client(url: str, pauses: list[float] | None = None, **how: Any) -> Client:
    given = Access(endpoint_url=url, anonymous=True, attempts=3)._replace(**how)
    said: list[float] = [] if pauses is None else pauses
    return Client("train", given, pause=said.append)


def in_turn(replies: Iterable[Reply]) -> Script:
    waiting = iter(replies)
    return lambda _: next(waiting)


def error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>because</Message></Error>".encode()


@pytest.mark.parametrize(
    "trouble",
    [Reply(503, error("SlowDown")), Reply(500), Reply(200, b"whole", cut=2), Reply(429)],
)
def test_passing_trouble_is_asked_about_again(trouble: Reply) -> None:
    pauses: list[float] = []
    with scripted(in_turn([trouble, trouble, Reply(200, b"whole")])) as endpoint:
        subject = client(endpoint.url, pauses)
        assert subject.ask("GET", "k").body == b"whole"
        subject.close()
    assert len(pauses) == 2
    assert all(0 <= pause <= 0.1 * 2**number for number, pause in enumerate(pauses, 1))


def test_trouble_that_stays_is_unavailable() -> None:
    with scripted(lambda _: Reply(503, error("SlowDown"))) as endpoint:
        subject = client(endpoint.url)
        with pytest.raises(Unavailable, match="SlowDown: because, 3 times"):
            subject.ask("GET", "k")
        subject.close()
    with pytest.raises(Unavailable, match="ConnectionRefused"):
        client(endpoint.url).ask("GET", "k")


def test_an_answer_that_does_not_come_is_not_waited_for_for_ever() -> None:
    held = threading.Event()

    def script(_: Asked) -> Reply:
        held.wait(30)
        return Reply()

    with scripted(script) as endpoint:
        with pytest.raises(Unavailable, match="TimeoutError"):
            client(endpoint.url, timeout_seconds=0.05).ask("GET", "k")
        held.set()


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (Reply(404, error("NoSuchKey")), MissingObject),
        (Reply(404), MissingObject),
        (Reply(404, error("NoSuchBucket")), MissingBucket),
        (Reply(403, error("SignatureDoesNotMatch")), AccessRefused),
        (Reply(412, error("PreconditionFailed")), ObjectChanged),
        (Reply(416, error("InvalidRange")), RangeOutside),
        (Reply(400, error("InvalidArgument")), RequestRefused),
        (Reply(301, error("PermanentRedirect")), RequestRefused),
    ],
)
def test_a_refusal_is_an_error_of_its_kind(reply: Reply, expected: type[FeedrackError]) -> None:
    with scripted(lambda _: reply) as endpoint:
        subject = client(endpoint.url)
        with pytest.raises(expected) as caught:
            subject.ask("GET", "a/k")
        assert caught.type is expected
        assert caught.value.key == "a/k"
        assert len(endpoint.asked) == 1
        subject.close()


def test_a_connection_is_kept_and_one_that_was_closed_meanwhile_is_no_trouble() -> None:
    pauses: list[float] = []
    with scripted(
        in_turn([Reply(), Reply(hang_up=True), Reply(), Reply(404), Reply()])
    ) as endpoint:
        subject = client(endpoint.url, pauses)
        for _ in range(3):
            subject.ask("GET", "k")
        with pytest.raises(MissingObject):
            subject.ask("GET", "k")
        subject.ask("GET", "k")
        assert endpoint.connections == 2
        assert not pauses
        subject.close()


@pytest.mark.parametrize("last", [False, True])
def test_only_the_beginning_of_an_answer_is_waited_for_longer(last: bool) -> None:
    headers = {"connection": "close"} if last else {}
    with scripted(in_turn([Reply(200, b"12345", headers), Reply()])) as endpoint:
        subject = client(endpoint.url)
        with subject.open("GET", "k", more_seconds=9.0) as streamed:
            # As the socket under the answer is left.
            beneath: Any = streamed.body.fp
            assert beneath.raw._sock.gettimeout() == 60.0
            assert streamed.body.read() == b"12345"
        subject.ask("GET", "k")
        assert endpoint.connections == 1 + last
        subject.close()


def test_threads_have_connections_of_their_own() -> None:
    both = threading.Barrier(2, timeout=60)

    def script(_: Asked) -> Reply:
        both.wait()
        return Reply(200, b"x" * 100_000)

    with scripted(script) as endpoint:
        subject = client(endpoint.url)
        found: list[int] = []

        def work() -> None:
            found.extend(len(subject.ask("GET", "k").body) for _ in range(5))

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [100_000] * 10
        assert endpoint.connections == 2
        subject.close()


def test_a_child_leaves_its_parents_connections_alone() -> None:
    with scripted(lambda asked: Reply(200, asked.target.encode())) as endpoint:
        subject = client(endpoint.url)
        assert subject.ask("GET", "before").body == b"/train/before"
        child = os.fork()
        if child == 0:
            good = subject.ask("GET", "child").body == b"/train/child"
            os._exit(0 if good else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert subject.ask("GET", "after").body == b"/train/after"
        assert endpoint.connections == 2
        subject.close()


def test_a_client_that_is_dropped_leaves_no_connection_behind() -> None:
    with scripted(lambda _: Reply()) as endpoint:
        subject = client(endpoint.url)
        subject.ask("GET", "k")
        idle = subject._idle
        assert idle.connections
        del subject
        assert not idle.connections


def test_an_endpoint_is_trusted_by_its_certificate(tmp_path: Path) -> None:
    # The gateway's own TLS is tested beside it; here: that we look.
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    subject = client("https://127.0.0.1:1", ca_file=str(tmp_path / "ca.pem"))
    assert subject._tls is not None
    assert subject._tls.check_hostname
    with pytest.raises(OSError, match="No such file"):
        client("https://127.0.0.1:1", ca_file=str(tmp_path / "none.pem"))


def test_a_client_shows_no_secret() -> None:
    assert repr(client("http://127.0.0.1:1")) == "Client('train', '127.0.0.1:1')"
