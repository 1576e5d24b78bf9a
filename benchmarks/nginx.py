"""nginx serving the origin's files: the floor that the machine sets, not a rival.

Debian's stock settings where they matter: sendfile, tcp_nopush, one unbuffered line a request in
the access log, in the `combined` format. One worker, because it has one core.
"""

import os
import shutil
import subprocess
from pathlib import Path

from benchmarks.server import HOST, PeerMissingError, Server


class Nginx(Server):
    """nginx as Debian sets it up."""

    name = "nginx"
    note = (
        "static files by sendfile, one worker, an access log of one line a request (Debian's "
        "settings); no signature checked, nothing under a checksum; PUT by its dav module, unsynced"
    )
    logs = True

    def __init__(self, data: Path, folder: Path) -> None:
        super().__init__(data, folder)
        # Debian's sbin is not on everybody's path.
        path = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
        program = shutil.which("nginx", path=path)
        if program is None:
            raise PeerMissingError("it is not installed (Debian: apt-get install nginx-light)")
        self._program = program
        said = subprocess.run([program, "-V"], capture_output=True, text=True, check=True).stderr
        self._version = said.partition("\n")[0].rpartition("/")[2]
        if "http_dav_module" not in said:
            self.put_missing = "it is built without its dav module"

    @property
    def version(self) -> str:
        return f"nginx {self._version}"

    def launch(self) -> None:
        (self.data / self.put_bucket).mkdir(exist_ok=True)
        dav = "" if self.put_missing else "dav_methods PUT; create_full_put_path on;"
        user = "user root;" if os.geteuid() == 0 else ""
        log = f"{self.folder}/access.log" if self.logs else "off"
        config = self.folder / "nginx.conf"
        config.write_text(f"""
            {user}
            daemon off;
            worker_processes 1;
            pid {self.folder}/nginx.pid;
            error_log stderr;
            events {{ worker_connections 1024; }}
            http {{
                sendfile on;
                tcp_nopush on;
                types_hash_max_size 2048;
                default_type application/octet-stream;
                access_log {log};
                keepalive_requests 1000000000;
                client_max_body_size 0;
                client_body_temp_path {self.data}/{self.put_bucket}/.incoming;
                proxy_temp_path {self.folder}/proxy;
                fastcgi_temp_path {self.folder}/fastcgi;
                uwsgi_temp_path {self.folder}/uwsgi;
                scgi_temp_path {self.folder}/scgi;
                server {{
                    listen {HOST}:{self.port};
                    root {self.data};
                    {dav}
                }}
            }}
        """)
        self.spawn([self._program, "-e", "stderr", "-c", str(config)])

    def ready(self) -> bool:
        return self.listens(self.port)


class SilentNginx(Nginx):
    """The same, without an access log: what the line a request costs nginx."""

    name = "nginx silent"
    note = "the same with `access_log off`, at the small reads only"
    logs = False
    put_missing = "it would be the same again"
