"""Services as they are: HTTP servers that people run, each with its own way to keep connections and to end them.

    with real_service("node", folder) as service:
        ...service.url, service.reload()...

Each answers a POST with 200 and nothing else. It closes a kept connection after a few requests, without saying so where
it can be told to. One whose program is not on this machine skips the test.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.deadline import until

STARTS_WITHIN = 60.0
"""Seconds. `go run` compiles first."""
EACH = 10
"""Requests on one connection."""
FLASK = ("flask==3.1.3", "gunicorn==27.0.1")
"""Nothing else here needs these, so they get an environment of their own, which is kept."""
ENVIRONMENTS = Path(__file__).parents[3] / "build" / "services"
IDLE = 1
"""Seconds for which gunicorn keeps an idle connection: less than the client does, so that it is always the one to end
it."""

UVICORN = """
async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown": await send({"type": "lifespan.startup.complete"})
        return await send({"type": "lifespan.shutdown.complete"})
    while (await receive()).get("more_body"): pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": b"OK"})
"""
HTTP_SERVER = """
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    protocol_version = sys.argv[2]
    served = 0
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
        self.served += 1
        self.close_connection = self.close_connection or self.served == 10
    def log_message(self, *_): pass
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
FLASK_APP = """
from flask import Flask, request
app = Flask(__name__)
@app.post("/events")
def events():
    request.get_data()
    return "ok"
"""
NODE = """
const http = require('http')
const server = http.createServer((request, response) => {
  request.resume()
  request.on('end', () => {
    response.end('ok')
    request.socket.served = (request.socket.served || 0) + 1
    if (request.socket.served == 10) setImmediate(() => request.socket.destroySoon())
  })
})
server.keepAliveTimeout = 50
server.listen(Number(process.argv[2]), '127.0.0.1')
"""
GO = """
package main
import ("io"; "net/http"; "os"; "time")
func main() {
  server := &http.Server{Addr: "127.0.0.1:" + os.Args[1], IdleTimeout: 20 * time.Millisecond,
    Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
      io.Copy(io.Discard, r.Body); w.(http.Flusher).Flush(); w.Write([]byte("ok")) })}
  server.ListenAndServe()
}
"""
NGINX = """
daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log; worker_processes 1;
events {{ worker_connections 256; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s; keepalive_requests 10;
  server {{ listen 127.0.0.1:{port}; location / {{ return 200; }} }}
}}
"""


class RealService(NamedTuple):
    """A service that runs: where records are posted, and what makes it load its configuration again."""

    url: str
    reload: Callable[[], None]


def python(program: str, *arguments: str) -> Callable[[Path, int], list[str]]:
    """The command of a Python program that gets its port."""
    return lambda _, port: [sys.executable, "-c", program, str(port), *arguments]


def uvicorn(folder: Path, port: int) -> list[str]:
    (folder / "app.py").write_text(UVICORN)
    options = ["--port", str(port), "--log-level", "warning", "--app-dir", str(folder), "--timeout-keep-alive", "1"]
    return [sys.executable, "-m", "uvicorn", "app:app", *options]


def gunicorn(*options: str) -> Callable[[Path, int], list[str]]:
    """Flask's usual server with two workers, each of which ends after some requests, with all its connections."""

    def command(folder: Path, port: int) -> list[str]:
        (folder / "app.py").write_text(FLASK_APP)
        asked = ["--bind", f"127.0.0.1:{port}", "--chdir", str(folder), "--log-level", "error", "--workers", "2"]
        idle = ["--keep-alive", str(IDLE), "--worker-tmp-dir", str(folder), *options]
        return [str(environment(FLASK)), "-m", "gunicorn", *asked, *idle, "app:app"]

    return command


def environment(packages: Sequence[str]) -> Path:
    """The Python of an environment with these packages, made at its first use; or a skip without a package index."""
    home = ENVIRONMENTS / "-".join(packages).replace("==", "-")
    if not home.exists():
        new = home.with_name(f"{home.name}.{os.getpid()}")
        subprocess.run([sys.executable, "-m", "venv", str(new)], check=True, timeout=120)
        got = subprocess.run(
            [new / "bin" / "python", "-m", "pip", "install", "-q", *packages], check=False, timeout=300
        )
        if got.returncode:
            shutil.rmtree(new)
            pytest.skip(f"no program for this service here: {' '.join(packages)} cannot be installed")
        try:
            new.rename(home)
        except OSError:  # another worker was first
            shutil.rmtree(new)
    return home / "bin" / "python"


def node(folder: Path, port: int) -> list[str]:
    (folder / "app.js").write_text(NODE)
    return [program("node"), str(folder / "app.js"), str(port)]


def go(folder: Path, port: int) -> list[str]:
    (folder / "main.go").write_text(GO)
    subprocess.run([program("go"), "build", "-o", folder / "app", folder / "main.go"], check=True, timeout=300)
    return [str(folder / "app"), str(port)]


def nginx(folder: Path, port: int) -> list[str]:
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder, port=port))
    return [program("nginx"), "-e", str(folder / "error.log"), "-c", str(folder / "nginx.conf")]


SERVICES: dict[str, Callable[[Path, int], list[str]]] = {
    "http.server, HTTP/1.1": python(HTTP_SERVER, "HTTP/1.1"),
    "http.server, HTTP/1.0": python(HTTP_SERVER, "HTTP/1.0"),
    "uvicorn": uvicorn,
    "gunicorn, threads": gunicorn("--threads", "8", "--max-requests", "200", "--max-requests-jitter", "50"),
    "gunicorn, sync": gunicorn("--max-requests", "200", "--max-requests-jitter", "50"),
    "gunicorn, long-lived": gunicorn("--threads", "8"),
    "node": node,
    "go": go,
    "nginx": nginx,
}


def program(name: str) -> str:
    """The path of a program, or a skip."""
    found = shutil.which(name) or shutil.which(name, path="/usr/local/go/bin:/usr/sbin")
    if found is None:
        pytest.skip(f"no program for this service here: {name}")
    return found


@contextmanager
def real_service(name: str, folder: Path) -> Iterator[RealService]:
    """Run one of them as long as the block."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = SERVICES[name](folder, port)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            until_it_listens(process, port)
            yield RealService(f"http://127.0.0.1:{port}/events", lambda: process.send_signal(signal.SIGHUP))
        finally:
            process.terminate()  # nginx and gunicorn end their workers; killed, they would leave them behind
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def until_it_listens(process: subprocess.Popen[bytes], port: int) -> None:
    """Wait for the port; what the program wrote is the error if it has ended."""

    def listens() -> bool:
        assert process.poll() is None, process.stderr and process.stderr.read()
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return True
        return False

    until(listens, STARTS_WITHIN, "it listens")
