"""JupyterLab as the course starts it: on this machine only, with its token, and without news or update pop-ups.

`labconfig/` turns off the plugin that asks whether to show Jupyter's news: it asks even where there are none.

A process of its own, so that nothing imported to prepare the model stays in the server's memory. The token comes in
the environment: a command line can be read by every user of a machine.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

START = "00_start_here.ipynb"
TOKEN_VARIABLE = "JUPYTER_TOKEN"
CONFIG_VARIABLE = "JUPYTER_CONFIG_PATH"


def arguments(folder: Path, port: int, browser: bool, token: str, *, root_user: bool) -> list[str]:
    """Return JupyterLab's arguments for the notebooks in `folder`; root is let in only where the user is root."""
    given = [
        "--ip=127.0.0.1",
        f"--port={port}",
        "--ServerApp.port_retries=0",
        f"--ServerApp.root_dir={folder}",
        f"--IdentityProvider.token={token}",
        "--PasswordIdentityProvider.hashed_password=",
        f"--LabApp.default_url=/lab/tree/{START}",
        "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        "--LabApp.extension_manager=readonly",
        "--ServerApp.answer_yes=True",
        "--Application.log_level=ERROR",  # its warnings are about notebooks and timeouts that are in order
        "--KernelManager.transport_encryption=auto",  # the kernel warns of eavesdroppers without it
    ]
    return given + ([] if browser else ["--no-browser"]) + (["--allow-root"] if root_user else [])


def is_root() -> bool:
    """Tell whether this process runs as the system's root user."""
    return hasattr(os, "geteuid") and os.geteuid() == 0


def main(folder: str, port: str, browser: str) -> None:
    """Start JupyterLab and stay until it is stopped."""
    from jupyterlab.labapp import LabApp

    token = os.environ[TOKEN_VARIABLE]
    paths = [os.environ.get(CONFIG_VARIABLE), str(Path(__file__).parent)]
    os.environ[CONFIG_VARIABLE] = os.pathsep.join(path for path in paths if path)
    LabApp.launch_instance(arguments(Path(folder), int(port), browser == "1", token, root_user=is_root()))


if __name__ == "__main__":
    main(*sys.argv[1:])
