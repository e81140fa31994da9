"""A server that answers with given pages, for tests of whoever asks one."""

import contextlib
import http.server
import json
import threading

from servelab.serving.target import KV_USAGE, RUNNING, WAITING

TEXT = f"""# HELP {KV_USAGE} usage
# TYPE {KV_USAGE} gauge
{KV_USAGE}{{engine="0",model_name="toy"}} 0.5
{KV_USAGE}{{engine="1",model_name="toy"}} 0.25
# TYPE {RUNNING} gauge
{RUNNING}{{engine="0",model_name="toy"}} 3.0
{RUNNING}{{engine="1",model_name="toy"}} 4.0
# TYPE {WAITING} gauge
{WAITING}{{engine="0",model_name="toy"}} 0.0
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{{engine="0"}} 70.0
vllm:generation_tokens_created{{engine="0"}} 1.7e9
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{{le="+Inf"}} 2.0
vllm:time_to_first_token_seconds_count 2.0
vllm:time_to_first_token_seconds_sum 0.5
"""


@contextlib.contextmanager
def answering(pages):
    """A server with pages: path -> (status, body). What it was asked is kept in `heard`."""
    heard = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            heard.append((self.command, self.path, dict(self.headers), None))
            self.send()

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            heard.append((self.command, self.path, dict(self.headers), json.loads(body)))
            self.send()

        def send(self):
            status, body = pages.get(self.path, (404, "not here"))
            content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *words):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", heard
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def listing(*names):
    return 200, {"object": "list", "data": [{"id": name, "root": f"/models/{name}"} for name in names]}
