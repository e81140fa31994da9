"""The real vLLM, with 16 bits and with 8 in its KV cache: it starts, is loaded, tells its memory, and ends."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from beside import need

from servelab.device import best_device
from servelab.device.accelerator import cpu_flags
from servelab.model import prepare_model
from servelab.serving import Lengths, Load, Target, TargetFailed, VLLMFailed, VLLMServer, guidellm, run_load, vllm
from servelab.trace import ServiceLevel

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
REQUESTS, TOKENS = 6, 8


@pytest.fixture
def start():
    """A server that is about to start over SmolLM2-135M; both tools must be there."""
    need(vllm.FOLDER, vllm.TOOL, vllm.TARGET)
    need(guidellm.FOLDER, guidellm.TOOL, guidellm.TARGET)
    # Compiling takes minutes where nothing has been compiled yet, as in CI: eager.
    small = {"max_model_len": 256, "max_num_seqs": 4, "options": ["--enforce-eager"], "progress": False}
    return lambda **options: VLLMServer(prepare_model(progress=False), **small, **options)


def check(server, kv_cache_dtype, with_drafts):
    """Loads it, and compares what GuideLLM saw with what it tells of itself."""
    sizes = {"prompt": Lengths(32), "output": Lengths(TOKENS)}
    load = Load(streams=(2,), requests=REQUESTS, service_level=ServiceLevel(latency_ms=600_000), **sizes)
    report = run_load(server.url, load, progress=False)
    metrics, text = server.metrics(), Target(server.url).metrics_text()
    (point,) = report.points
    assert report.model == server.name
    assert (point.completed, point.failed, point.good) == (REQUESTS, 0, REQUESTS)
    assert point.output_tokens == TOKENS
    assert point.ttft_ms.p50 < point.latency_ms.p50
    assert metrics["vllm:generation_tokens_total"] >= REQUESTS * TOKENS
    assert f'cache_dtype="{kv_cache_dtype}"' in text
    assert ("vllm:spec_decode_num_draft_tokens_total" in metrics) is with_drafts
    assert max(sample.running for sample in report.samples) == 2
    assert 0 < max(sample.kv_usage for sample in report.samples) < 1


def test_it_starts_is_loaded_tells_its_memory_and_ends(start):
    with start(ngram=3) as server:
        check(server, "auto", with_drafts=True)
    with pytest.raises(TargetFailed, match="No answer from"):
        server.metrics()


def test_its_kv_cache_in_8_bits(start):
    """Where vLLM has kernels for it; elsewhere it must say in the first line what is missing."""
    server = start(kv_cache_dtype="fp8")
    if best_device() == "cuda" or any(flag.startswith(("avx512", "amx")) for flag in cpu_flags()):
        with server:
            check(server, "fp8", with_drafts=False)
    else:
        with pytest.raises(VLLMFailed) as failed, server:
            pass
        assert "FP8 KV cache on CPU requires x86 with AVX-512 or AMX" in str(failed.value).splitlines()[0]
