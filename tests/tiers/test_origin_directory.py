"""The directory origin keeps the contract of every origin, whatever its file system can do."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.telemetry.metrics import Metrics
from gateway.tiers.origin_directory import DirectoryOrigin
from tests.tiers.origin_contract import OriginContract


class TestDirectoryOrigin(OriginContract):
    @pytest.fixture(params=["full", "plain"])
    async def origin(
        self, tmp_path: Path, request: pytest.FixtureRequest
    ) -> AsyncIterator[DirectoryOrigin]:
        """Over a file system with attributes and exchanges, and as over one without either."""
        able = request.param == "full"
        origin = DirectoryOrigin("nas", tmp_path, Metrics(), attributes=able, exchanges=able)
        await origin.start()
        yield origin
        await origin.close()
