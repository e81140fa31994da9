"""A GPU's numbers are measured where there is one, and read, with device and date, where there is none."""

import pytest
import torch

from servelab.course import live, on_gpu
from servelab.course.live import KEEP, GpuRecord


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Test GPU")
    monkeypatch.setattr("servelab.device.machine_name", lambda: "Test GPU")


@pytest.fixture
def no_gpu(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(live, "RECORDS", tmp_path)
    return tmp_path


def test_it_is_measured_and_kept_where_somebody_asks(gpu, tmp_path, monkeypatch, capsys):
    on_gpu("99.decode", "ms", lambda: {"with a copy": 3.14159, "through the table": 1})
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv(KEEP, str(tmp_path))
    on_gpu("99.decode", "ms", lambda: {"with a copy": 3.14159, "through the table": 1})
    record = GpuRecord.load(tmp_path / "99.decode.json")
    assert record.values == {"with a copy": 3.14159, "through the table": 1.0}
    lines = capsys.readouterr().out.splitlines()[3:]
    assert lines == ["with a copy: 3.14 ms", "through the table: 1 ms", f"Measured on Test GPU, {record.date}"]


def test_without_a_gpu_it_is_the_recorded_one(no_gpu, capsys):
    GpuRecord({"a": 2.5}, "ms", "NVIDIA H200", "2026-12-01").save(no_gpu / "99.decode.json")
    on_gpu("99.decode", "ms", lambda: pytest.fail("measured without a GPU"))
    said = "No GPU here, so what was recorded on one:\na: 2.5 ms\nMeasured on NVIDIA H200, 2026-12-01\n"
    assert capsys.readouterr().out == said


def test_without_a_record_it_says_so(no_gpu, capsys):
    on_gpu("99.decode", "ms", lambda: pytest.fail("measured without a GPU"))
    assert capsys.readouterr().out == "No GPU here, and nothing recorded on one yet. With a GPU, this cell measures.\n"


@pytest.mark.parametrize("text", ["{}", "[]", "nonsense", '{"version": 2, "values": {}}', '{"version": 1, "a": 1}'])
def test_another_file_is_refused(no_gpu, text):
    (no_gpu / "99.decode.json").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"expected a GPU record of version 1 in .*99\.decode\.json"):
        on_gpu("99.decode", "ms", lambda: pytest.fail("measured without a GPU"))
