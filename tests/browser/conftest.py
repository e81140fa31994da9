"""Browser tests: skipped, with the reason, where Chromium is missing, and failed there when they are demanded."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from harness import missing


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    reason = missing()
    demanded = os.environ.get("SERVELAB_REQUIRE_BROWSER") == "1"
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.browser)
            if reason and not demanded:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def _browser_is_there() -> None:
    if reason := missing():
        pytest.fail(f"SERVELAB_REQUIRE_BROWSER=1 demands a browser: {reason}")
