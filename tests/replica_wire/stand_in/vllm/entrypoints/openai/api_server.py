"""Stands in for vLLM where only its processes matter: a server with an engine with a worker.

Engine and worker ignore SIGTERM, and the worker leaves its session, as a hanging one might.
Every process writes its pid to the log.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

ENGINE = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("pid", os.getpid(), os.sched_getscheduler(0), flush=True)
if sys.argv[1:]:
    subprocess.Popen([sys.executable, "-c", sys.argv[1]], start_new_session=True, close_fds=False)
else:
    os.write(int(os.environ["UP"]), b"the worker is up")
time.sleep(600)
"""


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps({"data": [{"id": "stand-in"}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--stand-in", default="serve", choices=["serve", "die", "hang"])
    parsed, _ = parser.parse_known_args()
    print("pid", os.getpid(), os.sched_getscheduler(0), flush=True)
    up, told = os.pipe()
    os.set_inheritable(told, True)
    engine = [sys.executable, "-c", ENGINE, ENGINE]
    subprocess.Popen(engine, env=os.environ | {"UP": str(told)}, close_fds=False)
    if parsed.stand_in == "die":
        os.read(up, 99)
        print("(EngineCore pid=7) ERROR 01-01 ValueError: not enough memory", flush=True)
        print("\n".join(f"unrelated line {n}" for n in range(40)), flush=True)
        sys.exit(3)
    if parsed.stand_in == "hang":
        time.sleep(600)
    HTTPServer((parsed.host, parsed.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
