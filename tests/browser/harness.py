"""A JupyterLab of its own in headless Chromium.

    with lab(folder) as page:
        page.open_nb("chapter.ipynb")
        page.run_all()
        page.locator(".servelab").first.click()
        assert page.errors == []

JupyterLab says "Idle" before the kernel's websocket is up, and "Run All Cells" is then silently lost, so `open_nb`
waits for the connection itself. Settings, history and the learner's data go to a temporary folder.
"""

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
]
LATE = "uncaught: [anywidget] Failed to initialize model."
CONNECTED = """() => {
  const context = window.jupyterapp?.shell?.currentWidget?.sessionContext;
  const kernel = context?.session?.kernel;
  return Boolean(context?.isReady && kernel?.connectionStatus === "connected" && kernel.status === "idle");
}"""
RUN_ALL = """() => {
  window.servelabRun = "running";
  window.jupyterapp.commands.execute("notebook:run-all-cells")
    .then(() => { window.servelabRun = "done"; }, (error) => { window.servelabRun = "failed: " + error; });
}"""
EXECUTE = """([code, timeout]) => new Promise((resolve, reject) => {
  const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
  const future = kernel.requestExecute({code, store_history: false});
  let text = "";
  future.onIOPub = (message) => { text += message.content.text || (message.content.traceback || []).join("\\n"); };
  future.done.then(() => resolve(text), reject);
  setTimeout(() => resolve(text + " (no answer in time)"), timeout);
})"""


def missing() -> str:
    """Why a browser test cannot run here, in one sentence; empty when it can."""
    if not Path(CHROMIUM).exists():
        return f"{CHROMIUM} is missing: on Debian, apt install chromium"
    try:
        import playwright  # noqa: F401
    except ImportError:
        return "playwright is missing: pip install 'servelab[test]'"
    return ""


class LabPage:
    """One browser page on one JupyterLab. `errors` gathers the console's errors; other names are Playwright's.

    `faults` are the errors without the one that anywidget reports when a page is busy for two seconds while a model
    starts: `test_listen` shows that such a widget answers all the same.
    """

    def __init__(self, page: Any, base: str, token: str, log: Path) -> None:
        self.page = page
        self.base = base
        self.token = token
        self.log = log
        self.errors: list[str] = []
        page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(f"uncaught: {error}"))

    @property
    def faults(self) -> list[str]:
        return [error for error in self.errors if error != LATE]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.page, name)

    def open_nb(self, path: str, timeout_s: float = 90) -> None:
        """Open a notebook (path below the lab's folder) and wait until its kernel can take a command."""
        self.page.goto(f"{self.base}/lab/tree/{path}?token={self.token}&reset")
        self.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=timeout_s * 1000)
        deadline = time.monotonic() + timeout_s
        while not self.page.evaluate(CONNECTED):
            question = self.page.locator(".jp-Dialog button.jp-mod-accept")
            if question.count():  # a notebook that names no kernel makes JupyterLab ask: take the first
                question.first.click()
            if time.monotonic() > deadline:
                raise RuntimeError(f"expected a kernel within {timeout_s} s, got:\n{self.log.read_text()[-2000:]}")
            self.page.wait_for_timeout(200)

    def run_all(self, timeout_s: float = 240) -> None:
        """Run every cell and wait for the last one. Raises RuntimeError when JupyterLab could not run them."""
        self.page.evaluate(RUN_ALL)
        self.page.wait_for_function("() => window.servelabRun !== 'running'", timeout=timeout_s * 1000)
        outcome = self.page.evaluate("() => window.servelabRun")
        if outcome != "done":
            raise RuntimeError(f"expected every cell to run, got {outcome}")
        self.page.wait_for_function(CONNECTED, timeout=timeout_s * 1000)

    def python(self, expression: str, timeout_s: float = 60) -> Any:
        """Evaluate a Python expression in the notebook's kernel; its value travels as JSON."""
        code = f"import json as _json; print('<<' + _json.dumps({expression}) + '>>')"
        answer = self.page.evaluate(EXECUTE, [code, timeout_s * 1000])
        if "<<" not in answer:
            raise RuntimeError(f"expected a value of {expression}, got {answer}")
        return json.loads(answer.split("<<", 1)[1].rsplit(">>", 1)[0])

    def set_theme(self, *, dark: bool) -> None:
        """Switch JupyterLab's theme and wait for its colours."""
        theme = "JupyterLab Dark" if dark else "JupyterLab Light"
        self.page.evaluate("theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})", theme)
        self.page.wait_for_function(
            "light => document.body.dataset.jpThemeLight === light", arg="false" if dark else "true", timeout=20_000
        )
        self.page.wait_for_timeout(400)

    def resize(self, width: int, height: int = 1100) -> None:
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.wait_for_timeout(400)

    def hide_sidebar(self) -> None:
        """Close the file browser, so that the notebook has the window to itself."""
        self.page.evaluate("() => window.jupyterapp.shell.collapseLeft()")
        self.page.wait_for_timeout(300)


@contextlib.contextmanager
def lab(
    root: str | os.PathLike[str], *, width: int = 1280, height: int = 1100, env: dict[str, str] | None = None
) -> Iterator[LabPage]:
    """JupyterLab on the folder `root`, and a page to drive it. Both are gone when the block ends."""
    from playwright.sync_api import sync_playwright

    home = Path(tempfile.mkdtemp(prefix="servelab-lab-"))
    token = secrets.token_hex(12)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    _write_settings(home)
    server = _start(Path(root), home, port, token, env or {})
    base = f"http://127.0.0.1:{port}"
    try:
        _wait_until_up(server, base, token, home / "server.log")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS, headless=True)
            page = browser.new_context(viewport={"width": width, "height": height}).new_page()
            yield LabPage(page, base, token, home / "server.log")
            browser.close()
    finally:
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        shutil.rmtree(home, ignore_errors=True)


def _start(root: Path, home: Path, port: int, token: str, env: dict[str, str]) -> subprocess.Popen[bytes]:
    folders = {
        name: str(home / name.lower())
        for name in (
            "JUPYTER_CONFIG_DIR",
            "JUPYTER_DATA_DIR",
            "JUPYTER_RUNTIME_DIR",
            "JUPYTERLAB_SETTINGS_DIR",
            "JUPYTERLAB_WORKSPACES_DIR",
            "IPYTHONDIR",
            "SERVELAB_DATA",
        )
    }
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        "--no-browser",
        "--allow-root",
        "--ip=127.0.0.1",
        f"--port={port}",
        "--ServerApp.port_retries=0",
        f"--IdentityProvider.token={token}",
        f"--ServerApp.root_dir={root.resolve()}",
        "--LabApp.expose_app_in_browser=True",
        "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]
    with (home / "server.log").open("wb") as log:
        return subprocess.Popen(command, env={**os.environ, **folders, **env}, stdout=log, stderr=subprocess.STDOUT)


def _write_settings(home: Path) -> None:
    """No news pop-up and no windowing: every cell stays in the page, so that a test finds its output."""
    for plugin, settings in {
        "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
        "@jupyterlab/notebook-extension/tracker": {"windowingMode": "none"},
    }.items():
        path = home / "jupyterlab_settings_dir" / f"{plugin}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(settings), encoding="utf-8")


def _wait_until_up(server: subprocess.Popen[bytes], base: str, token: str, log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and server.poll() is None:
        try:
            urllib.request.urlopen(f"{base}/api?token={token}", timeout=2)
            return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"expected JupyterLab to answer within 60 s, got:\n{log.read_text()[-2000:]}")
