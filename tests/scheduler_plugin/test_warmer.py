"""What the gateways are asked for, and how often."""

import pwd
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from msgspec.structs import replace

from scheduler_plugin.config import WarmingConfig
from scheduler_plugin.dataset import Dataset
from scheduler_plugin.gateways import Gateways
from scheduler_plugin.ranking_file import Readers
from scheduler_plugin.slurm.model import Job
from scheduler_plugin.stager import Stager
from scheduler_plugin.warmer import STAGED_PRIORITY, Warmer
from tests.scheduler_plugin.test_gateways import admin_port


class Admin:
    """An admin port with room for `room` prefetches; `asked` has those asked for, `changed` how
    urgent they became later. Nobody serves in the racks of `deserted`; `racks` were taken."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.asked: list[str] = []
        self.deserted: set[str] = set()
        self.racks: list[list[str]] = []
        self.changed: list[int] = []

    async def answer(self, request: web.Request) -> web.Response:
        if request.method == "PATCH":
            self.changed.append(msgspec.json.decode(await request.read())["priority"])
            return web.json_response({})
        if request.method != "POST":
            return web.json_response(
                {"state": "running", "listed": True, "bytes": {"found": 10, "done": 5}}
            )
        document = msgspec.json.decode(await request.read())
        self.asked.append(document["dataset"])
        if len(self.asked) > self.room:
            return web.Response(status=429)
        if self.deserted.intersection(document["racks"]):
            return web.Response(status=409)
        self.racks.append(document["racks"])
        return web.json_response({"id": f"p{len(self.asked)}"}, status=202)


@pytest.fixture
def clock() -> list[float]:
    return [1000.0]


@pytest.fixture
async def everything(
    tmp_path: Path, room: int, clock: list[float]
) -> AsyncIterator[tuple[Admin, Warmer, Stager]]:
    async with AsyncExitStack() as stack:
        admin = Admin(room)
        url = await stack.enter_async_context(admin_port(admin.answer))
        gateways = await stack.enter_async_context(Gateways([url], "t"))

        async def readers(_: Dataset) -> Readers:
            return Readers(everybody=True)

        warmer = Warmer(
            WarmingConfig(),
            gateways,
            rack_of=lambda host: f"r{host[1:]}",
            readers=readers,
            monotonic=lambda: clock[0],
        )
        stager = Stager(tmp_path, gateways, warmer, rack_of=lambda _: None, racks=lambda: ["r1"])
        yield admin, warmer, stager


def job(id_: int, name: str, *, staged: bool) -> Job:
    return Job(
        id=id_,
        state="pending" if staged else "running",
        user=pwd.getpwuid(0).pw_name,
        hosts=() if staged else ("n1",),
        start=0.0 if staged else 4e9,
        burst_buffer="#FEEDRACK stage=0.9" if staged else "",
        comment=f"dataset=s3://train/{name}",
    )


@pytest.mark.parametrize("room", [100])
async def test_jobs_that_wait_for_one_dataset_share_its_prefetch(
    everything: tuple[Admin, Warmer, Stager], tmp_path: Path
) -> None:
    admin, _, stager = everything
    for _ in range(3):
        await stager.look([job(number, "imagenet", staged=True) for number in (1, 2, 3)])
    assert admin.asked == ["s3://train/imagenet/"]
    assert told(tmp_path, 1, 2, 3) == ["0.5000"] * 3


@pytest.mark.parametrize("room", [0])
async def test_what_there_is_no_room_for_now_is_not_staged(
    everything: tuple[Admin, Warmer, Stager], tmp_path: Path
) -> None:
    admin, _, stager = everything
    await stager.look([job(1, "imagenet", staged=True)])
    assert told(tmp_path, 1) == ["0.0000"]
    admin.room = 10
    await stager.look([job(1, "imagenet", staged=True)])
    assert told(tmp_path, 1) == ["0.5000"]


@pytest.mark.parametrize("room", [100])
async def test_what_a_job_is_held_for_is_as_urgent_though_it_was_asked_for_before(
    everything: tuple[Admin, Warmer, Stager],
) -> None:
    admin, warmer, stager = everything
    planned = replace(job(1, "imagenet", staged=True), hosts=("n1",), start=time.time() + 60)
    for _ in range(3):
        await warmer.look([planned])
        await stager.look([planned])
    assert admin.asked == ["s3://train/imagenet/"]
    assert admin.changed == [STAGED_PRIORITY]


@pytest.mark.parametrize("room", [100])
async def test_nothing_is_told_before_racks_are_known(
    everything: tuple[Admin, Warmer, Stager], tmp_path: Path
) -> None:
    admin, _, stager = everything
    stager._racks = lambda: []
    (tmp_path / "1").write_text("0.2500 1796000000\n")
    await stager.look([job(number, "imagenet", staged=True) for number in (1, 2)])
    assert admin.asked == []
    # What an earlier daemon told stands.
    assert told(tmp_path, 1) == ["0.2500"]
    assert not (tmp_path / "2").exists()
    stager._racks = lambda: ["r1"]
    await stager.look([job(number, "imagenet", staged=True) for number in (1, 2)])
    assert told(tmp_path, 1, 2) == ["0.5000"] * 2


@pytest.mark.parametrize("room", [2])
async def test_where_there_is_no_more_room_the_others_are_not_asked_for(
    everything: tuple[Admin, Warmer, Stager],
) -> None:
    admin, warmer, _ = everything
    await warmer.look([job(number, f"d{number}", staged=False) for number in range(50)])
    assert len(admin.asked) == 3


@pytest.mark.parametrize("room", [100])
async def test_a_rack_that_nobody_serves_is_warmed_once_it_is_back_and_the_others_meanwhile(
    everything: tuple[Admin, Warmer, Stager], clock: list[float]
) -> None:
    admin, warmer, _ = everything
    admin.deserted = {"r2"}
    wide = replace(job(1, "imagenet", staged=False), hosts=("n1", "n2", "n3"))
    await warmer.look([wide])
    assert admin.racks == [["r1"], ["r3"]]
    admin.deserted.clear()
    await warmer.look([wide])
    assert admin.racks == [["r1"], ["r3"]], "asked for again without end"
    clock[0] += 20
    await warmer.look([wide])
    assert admin.racks == [["r1"], ["r3"], ["r2"]]


@pytest.mark.parametrize("room", [100])
async def test_a_job_is_held_while_nobody_serves_the_rack_it_is_staged_into(
    everything: tuple[Admin, Warmer, Stager], tmp_path: Path, clock: list[float]
) -> None:
    admin, _, stager = everything
    admin.deserted = {"r1"}
    for _ in range(2):
        await stager.look([job(1, "imagenet", staged=True)])
        assert told(tmp_path, 1) == ["0.0000"]
    admin.deserted.clear()
    clock[0] += 20
    await stager.look([job(1, "imagenet", staged=True)])
    assert told(tmp_path, 1) == ["0.5000"]


@pytest.mark.parametrize("room", [100])
async def test_so_is_one_whose_rack_was_warmed_long_ago_for_another(
    everything: tuple[Admin, Warmer, Stager], tmp_path: Path, clock: list[float]
) -> None:
    admin, _, stager = everything
    await stager.look([job(1, "imagenet", staged=True)])
    clock[0] += WarmingConfig().again_seconds + 1
    admin.deserted = {"r1"}
    await stager.look([job(1, "imagenet", staged=True), job(2, "imagenet", staged=True)])
    assert told(tmp_path, 2) == ["0.0000"]


def told(folder: Path, *ids: int) -> Sequence[str]:
    return [(folder / str(each)).read_text().split()[0] for each in ids]
