"""An environment beside the course's: `.venv-vllm` and `.venv-guidellm` ask for versions of their own.

A file beside this one pins them all. Like `.venv`, such an environment is made again only when something has changed,
and what goes wrong is one sentence.
"""

import hashlib
import os
import platform
import re
import sys

from lab import CPU_BUILDS, ROOT, Environment, Stop, probe, say


class PinnedEnvironment(Environment):
    """An environment that `pins`, a file in `tools/`, describes in full. Subclasses install into it."""

    pins = ""
    name = ""  # of what it holds, as people write it
    floor_text = ""  # how much disk to free, in words

    @property
    def constraints(self):
        return self.root / "tools" / self.pins

    def made_from(self, version):
        return hashlib.sha256(f"{self.root} {version}".encode() + self.constraints.read_bytes()).hexdigest()

    def pin(self, package):
        return re.search(rf"^{package}==\S+", self.constraints.read_text(), re.M).group()

    def install_cpu_torch(self):
        """The build of torch for processors, and nothing that it asks for: the next command brings that, pinned."""
        pin = self.pin("torch") if platform.system() != "Darwin" else self.pin("torch").partition("+")[0]
        command = [*self.pip(), "install", "--no-deps", "--retries", "1", "--extra-index-url", CPU_BUILDS, pin]
        self.call(command, "The CPU build of torch could not be installed")

    def full_disk(self, finding):
        return f"The disk is full ({finding}): free {self.floor_text}, then run `{self.again}` again."


def make(environment_class, again, torch="cpu", root=ROOT):
    """Make the environment unless it is there, and say so. Returns the exit code."""
    again = os.environ.get("SERVELAB_AGAIN", again)
    try:
        environment = environment_class(root, again)
        environment.ensure(torch=torch)
        version = ".".join(map(str, probe(environment.python)[0]))
        say(f"{environment.name} is ready in {environment.folder} (Python {version})")
        return 0
    except Stop as stop:
        print(f"\n{stop}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\nStopped: run `{again}` to go on.", file=sys.stderr)
        return 130
