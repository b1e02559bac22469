"""Services as they are: HTTP servers that people run, each with its own way to keep connections and to end them.

    with real_service("node", folder) as service:
        ...service.url, service.reload()...

Each answers a POST with 200 and nothing else. It closes a kept connection after a few requests, without saying so where
it can be told to. One whose program is not on this machine skips the test.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

STARTS_WITHIN = 60.0
"""Seconds. `go run` compiles first."""
EACH = 10
"""Requests on one connection."""

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
            process.kill()


def until_it_listens(process: subprocess.Popen[bytes], port: int) -> None:
    """Wait for the port; what the program wrote is the error if it has ended."""
    end = time.monotonic() + STARTS_WITHIN
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            assert process.poll() is None, process.stderr and process.stderr.read()
            assert time.monotonic() < end, "it does not listen"
            time.sleep(0.02)
        else:
            return
