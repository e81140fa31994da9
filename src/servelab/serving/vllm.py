"""`VLLMServer`: a real vLLM from its own environment (`make vllm`), from its start to an end that leaves nothing.

Where a machine with a GPU has vLLM's build for it, the same command starts that. Whatever vLLM takes beyond what is
named here goes into `options`, for example ("--tensor-parallel-size", "2").
"""

import json
import os
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from servelab.device import best_device, has_fast_bfloat16
from servelab.serving.environment import find_python
from servelab.serving.process import last_words, stop_group
from servelab.serving.target import Target, TargetFailed
from servelab.translation import _

FOLDER, TOOL, TARGET = ".venv-vllm", "vLLM", "vllm"
TCMALLOC = "*/libtcmalloc*.so.4"  # below /usr/lib, where there is one
KV_CACHE_GB = 1
# The line that ends a traceback, with or without the head that vLLM's log gives it.
ERROR = re.compile(r"^(?:\([^)]*\) )?(?:ERROR [^\]]*\] )?(\w*(?:Error|Exception): .+)")
READY_S = 600.0  # the first start compiles; later ones take about a minute on two cores
POLL_S = 0.5
SHOWN_LINES = 12


class VLLMFailed(Exception):
    """vLLM could not start, or ended: a sentence, and below it the last that it said."""


def environment(folder: Path, kv_cache_gb: int = 2) -> dict[str, str]:
    """The variables that vLLM for CPU runs fastest and quietly with, from its environment at `folder`.

    Intel's OpenMP goes first, as vLLM's own guide asks for. Every core computes: left to itself vLLM keeps one for its
    front end, half of a small machine. Its cache of whole compiled models does not load (0.32): each start would
    compile for two minutes. Inductor's own does. kv_cache_gb: size of the KV cache, in GiB.
    """
    libraries = [str(folder / "lib" / "libiomp5.so"), *sorted(map(str, Path("/usr/lib").glob(TCMALLOC)))[:1]]
    return {
        "HF_HUB_OFFLINE": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": str(kv_cache_gb),
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_CACHE_ROOT": str(folder / "cache" / "vllm"),
        "VLLM_USE_AOT_COMPILE": "0",
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache" / "inductor"),
        "LD_PRELOAD": ":".join(library for library in libraries if Path(library).exists()),
    }


class VLLMServer:
    """vLLM's OpenAI-compatible server over `model`, a folder of safetensors with its tokenizer.

    name: what clients call the model (default: the folder's name). port: 0 for one that is free.
    dtype: of weights and activations; "auto" is the model's own, but float32 on a processor without bfloat16.
    kv_cache_dtype: "auto" (as dtype) or "fp8", for which vLLM 0.32 asks a processor for AVX-512 or AMX.
    ngram: draft tokens a step, looked up in the text; None for none.
    max_model_len, max_num_seqs, prefix_caching: as in `EngineConfig`. kv_cache_gb: size of the KV cache on a CPU, GiB.
    options: further words for vLLM's command line. python: of another environment than `.venv-vllm`.
    ready_s: how long to wait until it answers. progress: show the wait on stderr.

    It starts where it is entered and ends where it is left. Entering raises EnvironmentMissing, and VLLMFailed where
    the port is taken, it dies, or it is not ready in time.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        name: str | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        dtype: str = "auto",
        kv_cache_dtype: str = "auto",
        ngram: int | None = None,
        max_model_len: int = 2048,
        max_num_seqs: int = 16,
        prefix_caching: bool = True,
        kv_cache_gb: int = KV_CACHE_GB,
        options: Sequence[str] = (),
        python: Path | None = None,
        ready_s: float = READY_S,
        progress: bool = True,
    ) -> None:
        for word, value in {"max_model_len": max_model_len, "max_num_seqs": max_num_seqs, "ngram": ngram}.items():
            if value is not None and value < 1:
                raise ValueError(f"expected {word} of at least 1, got {value}")
        self.model, self.name = os.fspath(model), name or Path(model).name
        self.host, self.port, self.python = host, port, python
        self.dtype = "float32" if dtype == "auto" and best_device() == "cpu" and not has_fast_bfloat16() else dtype
        self.kv_cache_dtype, self.ngram = kv_cache_dtype, ngram
        self.max_model_len, self.max_num_seqs, self.prefix_caching = max_model_len, max_num_seqs, prefix_caching
        self.kv_cache_gb, self.options, self.ready_s, self.progress = kv_cache_gb, list(options), ready_s, progress

    @property
    def url(self) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def command(self, python: Path) -> list[str]:
        """Its command line. vLLM for CPU has no working `vllm` command, and the module is the same in every build."""
        words = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", self.model]
        words += ["--served-model-name", self.name, "--host", self.host, "--port", str(self.port)]
        words += ["--dtype", self.dtype, "--kv-cache-dtype", self.kv_cache_dtype]
        words += ["--max-model-len", str(self.max_model_len), "--max-num-seqs", str(self.max_num_seqs)]
        words += ["--enable-prefix-caching" if self.prefix_caching else "--no-enable-prefix-caching"]
        if self.ngram is not None:
            drafter = {"method": "ngram", "num_speculative_tokens": self.ngram, "prompt_lookup_max": 3}
            words += ["--speculative-config", json.dumps(drafter)]
        return words + self.options

    def __enter__(self) -> "VLLMServer":
        python = self.python or find_python(FOLDER, TOOL, TARGET)
        self.port = free_port(self.host, self.port)
        self._log = tempfile.TemporaryFile("w+", errors="replace")
        self._process = subprocess.Popen(
            self.command(python),
            env={**os.environ, **environment(python.parent.parent, self.kv_cache_gb)},
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            self._wait()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end()

    def metrics(self) -> dict[str, float]:
        """Counters and gauges of its `/metrics` by name. Raises TargetFailed where it does not answer."""
        return Target(self.url).metrics()

    def log_tail(self, lines: int = SHOWN_LINES) -> str:
        """The last that it said."""
        self._log.seek(0)
        return last_words(self._log, lines)

    def cause(self) -> str:
        """The first error in what it said: its later ones only say that a process of its own has ended."""
        self._log.seek(0)
        found = (ERROR.search(line) for line in self._log)
        return next((match[1].strip() for match in found if match), _("it named no error"))

    def _wait(self) -> None:
        from tqdm import tqdm

        begin, target = time.monotonic(), Target(self.url)
        with tqdm(bar_format="{desc} {elapsed}", disable=not self.progress) as bar:
            bar.set_description_str(_("vLLM starts, which takes a minute or more"))
            while True:
                code = self._process.poll()
                if code is not None:
                    sentence = _(
                        "vLLM ended with code {code} before it was ready: {cause}\nThe last that it said:\n{tail}"
                    )
                    raise VLLMFailed(sentence.format(code=code, cause=self.cause(), tail=self.log_tail()))
                if time.monotonic() - begin > self.ready_s:
                    sentence = _("vLLM was not ready after {seconds:.0f} s. The last that it said:\n{tail}")
                    raise VLLMFailed(sentence.format(seconds=self.ready_s, tail=self.log_tail()))
                try:
                    target.models()
                    return
                except TargetFailed:
                    bar.refresh()
                    time.sleep(POLL_S)

    def _end(self) -> None:
        stop_group(self._process)
        self._log.close()


def free_port(host: str, port: int) -> int:
    """`port`, or for 0 one that is free. Raises VLLMFailed where it is taken or the host is not this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
        except OSError as error:
            raise VLLMFailed(
                _("Cannot listen on {host}, port {port}: {reason}").format(
                    host=host, port=port, reason=error.strerror or error
                )
            ) from None
        number: int = listener.getsockname()[1]
        return number
