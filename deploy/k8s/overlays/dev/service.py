"""A service to try out Reconsume with: it takes records that begin with `{` and fails the others."""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Events(BaseHTTPRequestHandler):
    """The verdict is the status of the answer."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Take one record."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200 if body.startswith(b"{") else 500)
        self.send_header("Content-Length", "0")
        self.end_headers()


ThreadingHTTPServer(("127.0.0.1", 8080), Events).serve_forever()
