"""The service under test: it takes orders of A-17 and fails all others."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Orders(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204 if order["sku"] == "A-17" else 500)
        self.send_header("Content-Length", "0")
        self.end_headers()


def server(port=0):
    return ThreadingHTTPServer(("127.0.0.1", port), Orders)


if __name__ == "__main__":
    server(8080).serve_forever()
