import subprocess
import sys

import pytest
import torch

from servelab.ops import backend
from servelab.ops.compiled import team


def test_a_backend_that_there_is_not_is_refused(monkeypatch):
    monkeypatch.setattr(backend, "choice", "fast")
    with pytest.raises(ValueError, match=r"SERVELAB_BACKEND in \('auto', 'triton', 'compiled', 'plain'\), got 'fast'"):
        backend.use_compiled()


@pytest.mark.parametrize(("reason", "auto"), [(None, True), ("no AVX2", False)])
def test_auto_compiles_where_it_can(monkeypatch, reason, auto):
    monkeypatch.setattr(backend, "cannot_compile", lambda: reason)
    monkeypatch.setattr(backend, "choice", "auto")
    assert backend.use_compiled() is auto
    monkeypatch.setattr(backend, "choice", "plain")
    assert not backend.use_compiled()
    monkeypatch.setattr(backend, "choice", "compiled")
    if reason is None:
        assert backend.use_compiled()
    else:
        with pytest.raises(ValueError, match=r"runs compiled kernels \(SERVELAB_BACKEND=compiled\), got: no AVX2"):
            backend.use_compiled()


def test_only_float32_without_a_gradient_is_compiled(monkeypatch):
    monkeypatch.setattr(backend, "use_compiled", lambda: True)
    x = torch.zeros(2)
    assert backend.computes(x)
    assert not backend.computes(x.double())
    assert not backend.computes(torch.zeros(2, device="meta"))
    x.requires_grad_()
    assert not backend.computes(x)
    with torch.no_grad():
        assert backend.computes(x)


def ask(code):
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return answer.stdout.split("\n") if answer.returncode == 0 else answer.stderr


def test_without_numba_pytorch_computes():
    code = (
        "import sys; sys.modules['numba'] = None\n"
        "from servelab.model import toy_model; from servelab.ops import backend\n"
        "print(toy_model().logits([1, 2]).shape); print(backend.cannot_compile())"
    )
    shape, reason, _ = ask(code)
    assert shape == "torch.Size([2, 257])"
    assert reason.startswith("import of numba")


def test_the_environment_chooses_and_numba_is_imported_only_for_kernels():
    code = (
        "import os, sys; os.environ['SERVELAB_BACKEND'] = 'plain'\n"
        "from servelab.model import toy_model; from servelab.ops import backend\n"
        "toy_model().logits([1, 2]); print(backend.use_compiled(), 'numba' in sys.modules)"
    )
    assert ask(code)[0] == "False False"


def test_without_openmp_pytorch_computes(monkeypatch, tmp_path):
    maps = tmp_path / "maps"
    maps.write_text("7f00-7f01 r-xp 00000000 08:01 1234    /usr/lib/libm.so.6\n")
    monkeypatch.setattr(team, "MAPPED_LIBRARIES", maps)
    monkeypatch.setattr(team, "openmp", team.openmp.__wrapped__)
    monkeypatch.setattr(backend, "openmp", team.openmp)
    assert backend.cannot_compile.__wrapped__() == "expected OpenMP with GOMP_parallel in this process, got []"
    monkeypatch.setattr(team, "MAPPED_LIBRARIES", tmp_path / "none")
    assert "none, got [Errno 2]" in backend.cannot_compile.__wrapped__()


def test_a_processor_without_the_vectors_gets_pytorch(monkeypatch):
    kernel = pytest.importorskip("servelab.ops.compiled.kernel")
    monkeypatch.setattr(kernel, "has_vectors", lambda: False)
    assert backend.cannot_compile.__wrapped__() == "the processor has neither AVX2 with FMA nor NEON"


def test_a_compiler_that_fails_is_a_warning(monkeypatch):
    pointwise = pytest.importorskip("servelab.ops.compiled.pointwise")
    monkeypatch.setattr(pointwise, "rms_norm", lambda *arguments: 1 // 0)
    with pytest.warns(UserWarning, match="kernels cannot be compiled here, PyTorch computes instead: integer division"):
        assert "division" in backend.cannot_compile.__wrapped__()


def test_a_kernel_that_computes_wrong_numbers_is_not_used(monkeypatch):
    pointwise = pytest.importorskip("servelab.ops.compiled.pointwise")
    monkeypatch.setattr(pointwise, "rms_norm", lambda x, weight, eps: x + 1)
    assert backend.cannot_compile.__wrapped__() == "a compiled kernel computes wrong numbers"
