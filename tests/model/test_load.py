import json

import huggingface_hub
import pytest
import torch
from huggingface_hub import constants
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

from servelab.model import ModelUnavailable, UnsupportedModel, load_model
from servelab.ops import backend

NAME = "someone/small"


@pytest.fixture
def hub(tmp_path, monkeypatch, llama_copy):
    """The hub's cache with one model in it, and no network."""
    snapshot = tmp_path / "hub/models--someone--small/snapshots/abc"
    snapshot.parent.mkdir(parents=True)
    llama_copy.rename(snapshot)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs/main").write_text("abc")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return snapshot


def test_a_hub_id_works_offline_from_the_local_copy(hub):
    model = load_model(NAME, dtype=torch.float32, device="cpu", progress=False)
    assert model.name == NAME
    assert model.logits([1, 2]).shape == (2, 320)


def test_a_hub_id_that_is_not_here_is_one_sentence(hub):
    with pytest.raises(ModelUnavailable) as error:
        load_model("someone/other", progress=False)
    assert str(error.value) == (
        "Cannot fetch someone/other from the hub: the hub cannot be reached and no copy is on this machine. "
        "The model smollm2-135m works offline."
    )


def test_the_architecture_is_checked_before_the_weights_are_fetched(hub, monkeypatch):
    (hub / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *a, **k: pytest.fail("weights were fetched"))
    with pytest.raises(UnsupportedModel, match="got 'mamba'"):
        load_model(NAME)


def test_no_pickle_and_no_code_is_asked_for(hub, monkeypatch):
    asked = {}
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **options: asked.update(options) or hub)
    load_model(NAME, device="cpu")
    assert asked["allow_patterns"] == ["*.safetensors", "*.json", "*.jinja"]
    assert asked["ignore_patterns"] == ["*/*"]


@pytest.mark.parametrize(
    ("error", "silent", "message"),
    [
        (GatedRepoError, False, "its licence must be accepted on the hub first"),
        (RepositoryNotFoundError, False, "the hub has no such model, or it is private"),
        (LocalEntryNotFoundError, False, "the hub cannot be reached"),
        (OSError, False, "cable cut"),
        (RuntimeError, True, "RuntimeError"),
    ],
)
def test_what_the_hub_says_becomes_a_sentence(monkeypatch, error, silent, message):
    def refuse(*arguments, **options):
        raise error.__new__(error, *([] if silent else ["cable cut\nand more"]))

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", refuse)
    with pytest.raises(ModelUnavailable, match=f"Cannot fetch {NAME} from the hub: {message}") as caught:
        load_model(NAME, progress=False)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["gpt-5", "./missing", "/missing/folder", "../x/y", ""])
def test_a_name_that_is_nothing_is_refused(name):
    with pytest.raises(ValueError, match=r"a model's name \(smollm2-135m, .*\), a hub id or an existing folder, got"):
        load_model(name)


def test_a_file_is_refused(llama_copy):
    with pytest.raises(ValueError, match=r"expected a folder with config\.json and safetensors, got the file"):
        load_model(llama_copy / "model.safetensors")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "expected the file .*config.json, got no such file"),
        ('{"model_type": "lla', "expected whole JSON in .*config.json"),
        ("[1, 2]", "expected a JSON object in .*config.json, got list"),
    ],
)
def test_a_missing_or_broken_configuration_is_named(llama_copy, text, message):
    (llama_copy / "config.json").unlink()
    if text is not None:
        (llama_copy / "config.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        load_model(llama_copy)


def test_end_tokens_come_from_the_generation_configuration(llama_copy):
    (llama_copy / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 9]}))
    assert load_model(llama_copy, device="cpu").tokenizer.eos_token_ids == (3, 9)
    (llama_copy / "generation_config.json").write_text("{}")
    assert load_model(llama_copy, device="cpu").tokenizer.eos_token_ids == (7,)


def test_code_beside_the_weights_is_never_run(llama_copy):
    config = json.loads((llama_copy / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "modeling.Trap"}
    (llama_copy / "config.json").write_text(json.dumps(config))
    (llama_copy / "modeling.py").write_text(f"open({str(llama_copy / 'ran')!r}, 'w')")
    load_model(llama_copy, device="cpu")
    assert not (llama_copy / "ran").exists()


@pytest.mark.parametrize("name", [None, 5, b"smollm2-135m", ["smollm2-135m"], "~nobody-here/model", "x" * 5000, ""])
def test_what_is_no_name_is_refused(name):
    with pytest.raises(ValueError, match=r"expected a model's name.*, got"):
        load_model(name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "float32"}, r"expected dtype as torch\.float32.*, got 'float32'"),
        ({"dtype": torch.int8}, r"expected dtype as torch\.float32.*, got torch\.int8"),
        ({"device": "nonsense"}, "expected a device that this machine has, such as cpu, got 'nonsense'"),
        ({"device": "cuda:99"}, "expected a device that this machine has, such as cpu, got 'cuda:99'"),
        ({"device": "meta"}, "expected a device that this machine has, such as cpu, got 'meta'"),
    ],
)
def test_a_dtype_or_a_device_that_cannot_be_is_refused_before_anything_is_read(options, message):
    with pytest.raises(ValueError, match=message):
        load_model("no/such-model", **options)


@pytest.mark.parametrize("is_kept", [True, False])
def test_kernels_are_compiled_when_a_model_is_loaded(hf_folder, monkeypatch, capsys, is_kept):
    """With a bar where it takes long, so that the first request does not wait for it."""
    kernel = pytest.importorskip("servelab.ops.compiled.kernel")
    if not backend.use_compiled():
        pytest.skip("no compiled kernels here")
    monkeypatch.setattr(kernel.Kernel, "is_kept", is_kept)
    load_model(hf_folder("llama")[0], dtype=torch.float32, device="cpu")
    assert all("address" in vars(kernel) for kernel in backend.kernels_of_a_step())
    assert ("Compiling for this processor" in capsys.readouterr().err) is not is_kept
    monkeypatch.setattr(backend, "choice", "plain")
    assert backend.kernels_of_a_step() == []
