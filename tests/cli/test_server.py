"""JupyterLab listens on this machine only, asks for its token, and does not run as root for anybody else."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from servelab.cli import server

TOKEN = "0123456789abcdef"


def given(**changes):
    options = {"browser": False, "root_user": False, **changes}
    return server.arguments(server.Path("/course/workspace"), 8899, options.pop("browser"), TOKEN, **options)


def test_it_binds_this_machine_and_the_asked_port_only():
    assert {"--ip=127.0.0.1", "--port=8899", "--ServerApp.port_retries=0"} <= set(given())


def test_root_is_allowed_only_for_root(monkeypatch):
    assert "--allow-root" in given(root_user=True)
    assert "--allow-root" not in given()
    for uid in (0, 1000):
        monkeypatch.setattr(server.os, "geteuid", lambda uid=uid: uid)
        assert server.is_root() == (uid == 0)


def test_a_browser_opens_unless_told_otherwise():
    assert "--no-browser" in given(browser=False)
    assert "--no-browser" not in given(browser=True)


@pytest.fixture
def running(tmp_path):
    """JupyterLab as `servelab lab` starts it, in homes of its own."""
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    homes = {f"JUPYTER_{name}_DIR": str(tmp_path / name) for name in ("CONFIG", "DATA", "RUNTIME")}
    (tmp_path / "CONFIG").mkdir()
    (tmp_path / "CONFIG" / "jupyter_server_config.json").write_text(
        json.dumps({"IdentityProvider": {"token": ""}, "ServerApp": {"ip": "0.0.0.0"}})
    )
    (tmp_path / "workspace").mkdir()
    command = [sys.executable, "-m", "servelab.cli.server", str(tmp_path / "workspace"), str(port), "0"]
    environ = {**os.environ, **homes, "JUPYTER_TOKEN": TOKEN}
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, env=environ, stdout=log, stderr=subprocess.STDOUT)
        yield process, f"http://127.0.0.1:{port}", tmp_path / "log"
        process.terminate()
        process.wait(30)


def test_it_is_up_asks_for_its_token_and_has_no_news(running):
    process, url, log = running
    deadline = time.monotonic() + 60
    while True:
        assert process.poll() is None, log.read_text()
        try:
            urllib.request.urlopen(f"{url}/api", timeout=2).close()
            break
        except OSError:
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{url}/api/contents", timeout=10)
    assert refused.value.code == 403, "a configuration that empties the token must not open the server"
    with urllib.request.urlopen(f"{url}/api/contents?token={TOKEN}", timeout=10) as answer:
        assert json.load(answer)["type"] == "directory"
    with urllib.request.urlopen(f"{url}/lab?token={TOKEN}", timeout=10) as answer:
        page = answer.read().decode()
    assert '"news": {"disabled": true}' in page
    assert "@jupyterlab/apputils-extension:announcements" in page.split('"disabledExtensions"')[1].split("]")[0]
    start_kernel = urllib.request.Request(f"{url}/api/kernels?token={TOKEN}", method="POST")
    with urllib.request.urlopen(start_kernel, timeout=60) as answer:
        kernel = json.load(answer)["id"]
    end_kernel = urllib.request.Request(f"{url}/api/kernels/{kernel}?token={TOKEN}", method="DELETE")
    time.sleep(3)  # until the kernel has said what it has to say
    urllib.request.urlopen(end_kernel, timeout=60).close()
    said = log.read_text()
    assert "without encryption" not in said, said
    assert TOKEN not in " ".join(process.args)
