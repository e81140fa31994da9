"""Where what is fetched once lies on this machine."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder of prepared models: `SERVELAB_CACHE`, or the system's cache folder for servelab.

    It may not exist yet.
    """
    given = os.environ.get("SERVELAB_CACHE")
    if given:
        return Path(given).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("servelab", appauthor=False))
