"""The service under delivery: nginx where it is installed, because a slower one would be what is measured."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

OUTPUT_TOPIC = "bench-outputs"
OUTPUT = '{"verdict": "commit", "produce": [{"topic": "%s", "key": "key-1", "value": "%s"}]}'
"""The answer of a success with one output of 200 B."""

CONFIG = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 4096; }}
http {{
  access_log off; keepalive_requests 100000000; client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    listen unix:{folder}/nginx.sock backlog=4096;
    location /ok {{ return 200; }}
    location /output {{ default_type application/json; return 200 '{output}'; }}
    location /fail {{ return 502; }}  # after a 500 nginx closes the connection, and connecting would be measured
    location /count {{ stub_status; }}
  }}
}}
"""


class Nginx:
    """nginx in the foreground on a free port of loopback; `count()` is how many requests it has had."""

    def __init__(self) -> None:
        binary = shutil.which("nginx")
        if binary is None:
            raise SystemExit("the benchmarks need nginx: apt-get install nginx-light")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._folder = tempfile.TemporaryDirectory(prefix="reconsume-bench-")
        config = Path(self._folder.name, "nginx.conf")
        output = OUTPUT % (OUTPUT_TOPIC, "v" * 200)
        config.write_text(CONFIG.format(folder=self._folder.name, port=self.port, output=output))
        self._process = subprocess.Popen(
            [binary, "-p", self._folder.name, "-c", str(config)], stderr=subprocess.DEVNULL
        )
        self._wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            try:
                self.count()
            except OSError:
                time.sleep(0.05)
            else:
                return
        raise SystemExit("nginx did not start")

    def url(self, path: str) -> str:
        """The address of one of its answers: `ok`, `output` or `fail` over TCP, `unix-ok` over a Unix socket."""
        if path.startswith("unix-"):
            return f"unix:{self._folder.name}/nginx.sock:/{path.removeprefix('unix-')}"
        return f"http://127.0.0.1:{self.port}/{path}"

    def count(self) -> int:
        """How many requests it has had, those of this method among them."""
        with urllib.request.urlopen(self.url("count"), timeout=5) as answer:
            return int(answer.read().split(b"\n")[2].split()[2])

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(10)
        self._folder.cleanup()
