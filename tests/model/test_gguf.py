import copy

import numpy as np
import pytest
import torch

import servelab.model.gguf as conversion
from servelab.model import load_model
from servelab.model.gguf import convert_gguf, unpermute


def worst(tmp_path, theirs, write_gguf):
    theirs = copy.deepcopy(theirs)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(parameter.bfloat16())
    write_gguf(tmp_path / "small.gguf", theirs)
    (tmp_path / "converted").mkdir()
    convert_gguf(tmp_path / "small.gguf", tmp_path / "converted")
    ours = load_model(tmp_path / "converted", dtype=torch.float32, device="cpu")
    ids = torch.arange(30)
    with torch.no_grad():
        expected = theirs(ids[None]).logits[0]
    return (ours.logits(ids.tolist()) - expected).abs().max().item()


@pytest.mark.parametrize("name", ["llama", "llama tied"])
def test_a_converted_model_equals_the_original(tmp_path, hf_folder, write_gguf, name):
    assert worst(tmp_path, hf_folder(name)[1], write_gguf) < 2e-4


def test_rows_left_permuted_would_show(tmp_path, hf_folder, write_gguf, monkeypatch):
    monkeypatch.setattr(conversion, "unpermute", lambda weight, num_heads: weight)
    assert worst(tmp_path, hf_folder("llama")[1], write_gguf) > 1e-2


def test_unpermute_undoes_llama_cpp_head_by_head():
    weight = np.arange(3 * 8 * 5, dtype=np.float32).reshape(24, 5)
    stored = weight.reshape(3, 2, 4, 5).swapaxes(1, 2).reshape(24, 5)  # convert_hf_to_gguf.py, `permute`
    assert np.array_equal(unpermute(stored, 3), weight)
    assert not np.array_equal(stored, weight)


def test_the_tokenizer_comes_with_it(tmp_path, hf_folder, write_gguf):
    worst(tmp_path, hf_folder("llama")[1], write_gguf)
    tokenizer = load_model(tmp_path / "converted", device="cpu").tokenizer
    assert tokenizer.decode(tokenizer.encode("é 12")) == "é 12"
    assert tokenizer.encode("<300>") == [300]
    assert (len(tokenizer.encode("ab")), len(tokenizer.encode("12"))) == (1, 2)  # every digit is on its own
    assert tokenizer.eos_token_ids == (259,)
    assert tokenizer.chat([{"role": "user", "content": "hi"}]) == "hi"


def test_another_architecture_or_tokenizer_is_refused(tmp_path, hf_folder, write_gguf):
    path = tmp_path / "small.gguf"
    write_gguf(path, hf_folder("llama")[1], architecture="gemma")
    with pytest.raises(ValueError, match="a GGUF file of architecture 'llama', got 'gemma'"):
        convert_gguf(path, tmp_path)
    write_gguf(path, hf_folder("llama")[1], pre="qwen2")
    with pytest.raises(ValueError, match=r"the tokenizer \('gpt2', 'smollm'\), got \('gpt2', 'qwen2'\)"):
        convert_gguf(path, tmp_path)


@pytest.mark.parametrize("kept", [0, 20, 3000, -100])
def test_a_cut_off_file_is_refused(tmp_path, hf_folder, write_gguf, kept):
    path = tmp_path / "small.gguf"
    write_gguf(path, hf_folder("llama")[1])
    data = path.read_bytes()
    path.write_bytes(data[:kept])
    with pytest.raises(ValueError, match=f"a whole GGUF file, got {len(data[:kept])} bytes"):
        convert_gguf(path, tmp_path)
