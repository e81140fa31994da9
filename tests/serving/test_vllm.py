"""A vLLM that is started and stopped: over a fake of its Python here, over the real one in test_real_vllm.py."""

import os
import signal
import socket
import sys
import textwrap
import time
from itertools import pairwise
from pathlib import Path

import pytest

from servelab.serving.environment import EnvironmentMissing
from servelab.serving.target import TargetFailed
from servelab.serving.vllm import VLLMFailed, VLLMServer, environment, free_port

SERVER = """
    import http.server, json, os, sys
    words = dict(zip(sys.argv[3::2], sys.argv[4::2]))
    pages = {
        "/v1/models": json.dumps({"data": [{"id": words["--served-model-name"]}]}),
        "/metrics": "vllm:num_requests_running 2\\nvllm:kv_cache_usage_perc 0.5\\n",
    }
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(pages[self.path].encode())
        def log_message(self, *words):
            pass
    print("up", os.environ["VLLM_CPU_KVCACHE_SPACE"], flush=True)
    http.server.HTTPServer((words["--host"], int(words["--port"])), Handler).serve_forever()
"""


@pytest.fixture
def fake(tmp_path):
    """An environment whose Python runs a few lines instead of vLLM: `fake(SERVER)` is the path of that Python."""

    def make(code):
        script, python = tmp_path / "vllm.py", tmp_path / "env" / "bin" / "python"
        script.write_text(textwrap.dedent(code))
        python.parent.mkdir(parents=True, exist_ok=True)
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "$@"\n')
        python.chmod(0o755)
        return python

    return make


def server(python, **options):
    return VLLMServer("/models/toy", python=python, progress=False, **options)


def test_it_starts_answers_and_ends_with_all_that_it_started(fake):
    with server(fake(SERVER), kv_cache_gb=3) as running:
        assert running.url.startswith("http://127.0.0.1:")
        assert running.metrics() == {"vllm:num_requests_running": 2, "vllm:kv_cache_usage_perc": 0.5}
        assert running.log_tail() == "up 3"
        pid = running._process.pid
    with pytest.raises(ProcessLookupError):
        os.killpg(pid, 0)
    with pytest.raises(TargetFailed):
        running.metrics()


def test_it_ends_where_the_work_fails(fake):
    running = server(fake(SERVER))
    with pytest.raises(RuntimeError, match="the load failed"), running:
        raise RuntimeError("the load failed")
    assert running._process.poll() is not None


def test_its_command_says_what_was_asked():
    more = ("--tensor-parallel-size", "2")
    asked = VLLMServer(Path("/m/toy"), port=1, dtype="bfloat16", kv_cache_dtype="fp8", ngram=4, options=more)
    words = asked.command(Path("python"))
    assert words[:3] == ["python", "-m", "vllm.entrypoints.openai.api_server"]
    told = dict(pairwise(words))
    assert (told["--model"], told["--served-model-name"], told["--port"]) == ("/m/toy", "toy", "1")
    assert (told["--dtype"], told["--kv-cache-dtype"], told["--max-model-len"]) == ("bfloat16", "fp8", "2048")
    assert told["--speculative-config"] == '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}'
    assert words[-2:] == ["--tensor-parallel-size", "2"]
    assert "--enable-prefix-caching" in words
    plain = VLLMServer("/models/toy", prefix_caching=False, name="mine").command(Path("python"))
    assert "--speculative-config" not in plain
    assert "--no-enable-prefix-caching" in plain
    assert "mine" in plain


@pytest.mark.parametrize(
    ("device", "fast", "dtype"), [("cpu", False, "float32"), ("cpu", True, "auto"), ("cuda", False, "auto")]
)
def test_a_processor_without_bfloat16_computes_in_float32(monkeypatch, device, fast, dtype):
    monkeypatch.setattr("servelab.serving.vllm.best_device", lambda: device)
    monkeypatch.setattr("servelab.serving.vllm.has_fast_bfloat16", lambda: fast)
    assert VLLMServer("m").dtype == dtype
    assert VLLMServer("m", dtype="float16").dtype == "float16"


def test_one_that_dies_says_its_last_words(fake):
    code = """
        print("(APIServer pid=6) WARNING 11-30 12:21:50 [system_utils.py:255] This can cause `OSError: [Errno 24]`.")
        print("(Worker pid=8) ERROR 11-30 12:22:31 [executor.py:1063]     raise ValueError(")
        print("(Worker pid=8) ERROR 11-30 12:22:31 [executor.py:1063] ValueError: fp9 is no KV cache dtype")
        print("(EngineCore pid=7) RuntimeError: Worker failed")
        raise RuntimeError("engine core initialization failed")
    """
    running = server(fake(code))
    with pytest.raises(VLLMFailed, match="vLLM ended with code 1 before") as failed, running:
        pass
    first, *_, last = str(failed.value).splitlines()
    assert first == "vLLM ended with code 1 before it was ready: ValueError: fp9 is no KV cache dtype"
    assert last == "RuntimeError: engine core initialization failed"


def test_one_that_dies_in_silence_says_so(fake):
    running = server(fake("raise SystemExit(3)"))
    with (
        pytest.raises(VLLMFailed, match=r"code 3 before it was ready: it named no error\n.*\nit said nothing"),
        running,
    ):
        pass


def test_one_that_is_never_ready_is_stopped(fake):
    running = server(fake("import time; print('compiling', flush=True); time.sleep(60)"), ready_s=0.5)
    begin = time.monotonic()
    with pytest.raises(VLLMFailed, match=r"vLLM was not ready after 0 s|compiling"), running:
        pass
    assert time.monotonic() - begin < 10
    assert running._process.poll() == -signal.SIGTERM


def test_a_port_that_is_taken_is_told_before_the_start(fake):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(VLLMFailed, match=rf"Cannot listen on 127.0.0.1, port {port}: Address already in use"):
            server(fake(SERVER), port=port).__enter__()


def test_any_free_port():
    port = free_port("127.0.0.1", 0)
    assert port > 0
    assert free_port("127.0.0.1", port) == port
    assert VLLMServer("m", host="::1", port=8).url == "http://[::1]:8"


def test_without_its_environment_it_says_how_to_make_it(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("servelab.serving.environment.servelab.__file__", str(tmp_path / "a" / "b" / "c" / "init.py"))
    with pytest.raises(EnvironmentMissing, match=r"^vLLM has no environment yet: run `make vllm` in the folder"):
        server(None).__enter__()


@pytest.mark.parametrize("options", [{"max_model_len": 0}, {"max_num_seqs": 0}, {"ngram": 0}])
def test_sizes_that_cannot_be_are_refused(options):
    with pytest.raises(ValueError, match=r"expected \w+ of at least 1, got 0"):
        VLLMServer("m", **options)


def test_its_variables_are_offline_and_name_intels_openmp_where_it_is(tmp_path):
    variables = environment(tmp_path, kv_cache_gb=3)
    assert variables["HF_HUB_OFFLINE"] == "1"
    assert variables["VLLM_CPU_KVCACHE_SPACE"] == "3"
    assert variables["VLLM_CPU_NUM_OF_RESERVED_CPU"] == "0"  # it computes on as many cores as ours
    assert variables["TORCHINDUCTOR_CACHE_DIR"].startswith(str(tmp_path))
    assert "libiomp5" not in variables["LD_PRELOAD"]
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libiomp5.so").touch()
    assert str(tmp_path / "lib" / "libiomp5.so") in environment(tmp_path)["LD_PRELOAD"]
