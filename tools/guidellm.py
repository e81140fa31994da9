"""Make `.venv-guidellm`, the environment of GuideLLM, which `servelab load` sends its requests with: `make guidellm`.

GuideLLM wants an older click than the course's other packages, so it never shares an environment with them.
`guidellm.txt` beside this file pins it. It needs torch to load its data and computes nothing with it: the CPU build.
"""

import sys

from lab import ROOT, say
from pinned import PinnedEnvironment, make

IMPORTS = "import guidellm.entrypoints"


class GuideLLMEnvironment(PinnedEnvironment):
    """`.venv-guidellm` at `root`."""

    folder = ".venv-guidellm"
    pins = "guidellm.txt"
    name = "GuideLLM"
    floor_bytes = 3_000_000_000  # the environment (1.5 GB) and its downloads
    floor_text = "3 GB"

    def install(self, extras, torch):
        """Install GuideLLM beside a small torch, and see whether it can be imported here."""
        say("Installing GuideLLM: 400 MB to fetch, some minutes; nothing the next time")
        self.install_cpu_torch()
        command = [*self.pip(), "install", "-c", str(self.constraints), self.pin("guidellm")]
        self.call(command, "GuideLLM could not be installed")
        self.call([str(self.python), "-c", IMPORTS], "GuideLLM is installed but cannot be imported on this machine")


def main(root=ROOT):
    return make(GuideLLMEnvironment, "make guidellm", root=root)


if __name__ == "__main__":
    sys.exit(main())
