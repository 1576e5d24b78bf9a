"""Rankings are made of what can be told, whatever somebody's job has named."""

import asyncio
import time
from pathlib import Path

import pytest
from aiohttp import web

from scheduler_plugin.config import parse
from scheduler_plugin.dataset import parse_hint
from scheduler_plugin.gateways import Gateways
from scheduler_plugin.ranker import Ranker
from scheduler_plugin.remembered import Remembered
from tests.scheduler_plugin.jobs import Queue
from tests.scheduler_plugin.test_gateways import admin_port


async def answer(request: web.Request) -> web.Response:
    name = request.query.get("dataset")
    if request.path == "/v1/members":
        return web.json_response({"members": [{"id": "n4", "rack": "rack2"}]})
    if name is None:
        held = {"dataset": "s3://train/images/", "nodes": {"n4": 5}, "readers": ["*"]}
        return web.json_response({"datasets": [held]})
    if "hangs" in name:
        await asyncio.sleep(3600)
    if "fails" in name:
        return web.Response(status=500)
    nodes = [{"id": "n4", "bytes": 7}]
    return web.json_response({"dataset": name, "nodes": nodes, "readers": ["*"]})


@pytest.mark.parametrize("trouble", ["fails", "hangs"])
async def test_a_name_that_gateways_cannot_answer_costs_the_others_nothing(
    tmp_path: Path, trouble: str
) -> None:
    config = parse(
        {
            "gateways": {
                "admin_urls": ["http://127.0.0.1:1"],
                "token_file": "/dev/null",
                "timeout_seconds": 1.0,
            },
            "folders": {"rankings": str(tmp_path / "rankings")},
        }
    )
    remembered = Remembered(tmp_path / "seen.json", seconds=3600)
    for text in (f"s3://train/a/b/{trouble}", "s3://train/a/b/deep"):
        remembered.see([("alice", parse_hint(text))], time.time())
    async with admin_port(answer) as url, Gateways([url], "t", timeout_seconds=5.0) as gateways:
        ranker = Ranker(config, Queue(), gateways, remembered)
        assert await ranker.refresh() == 3
    written = {each.name for each in (tmp_path / "rankings").iterdir()}
    assert written == {"train", "train%2Fimages", "train%2Fa%2Fb%2Fdeep"}
