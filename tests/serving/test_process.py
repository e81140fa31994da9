"""A child process with children of its own comes to its end, politely where it can."""

import subprocess
import sys
import time

from servelab.serving.process import stop_group

START = "import signal, sys, time; signal.signal(signal.SIGTERM, {}); print(1, flush=True); time.sleep(60)"
POLITE, DEAF = START.format("lambda *_: sys.exit(7)"), START.format("signal.SIG_IGN")


def start(code):
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    process.stdout.readline()
    process.stdout.close()
    return process


def test_it_may_end_in_order():
    assert stop_group(start(POLITE)) == 7


def test_whoever_does_not_listen_is_killed():
    begin = time.monotonic()
    assert stop_group(start(DEAF), patience_s=0.1) == -9
    assert time.monotonic() - begin < 5


def test_one_that_has_ended_keeps_its_code():
    process = start("print(1, flush=True); raise SystemExit(3)")
    process.wait(10)
    assert stop_group(process) == 3
