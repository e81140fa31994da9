import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from servelab.model import load_model

FILE = "model.safetensors"


def load(folder):
    return load_model(folder, dtype=torch.float32, device="cpu")


def change(folder, edit):
    tensors = load_file(folder / FILE)
    edit(tensors)
    save_file(tensors, folder / FILE)


def shard(folder):
    """Split the file in two with an index, as large models come."""
    tensors = load_file(folder / FILE)
    names, weight_map = sorted(tensors), {}
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        file = f"model-{number:05}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, folder / file)
        weight_map.update(dict.fromkeys(part, file))
    (folder / FILE).unlink()
    (folder / f"{FILE}.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return weight_map


def test_shards_give_the_same_model(llama_copy, hf_folder):
    shard(llama_copy)
    ids = list(range(20))
    assert torch.equal(load(llama_copy).logits(ids), load(hf_folder("llama")[0]).logits(ids))


def test_16_bit_weights_are_converted(llama_copy):
    change(llama_copy, lambda tensors: tensors.update({name: x.bfloat16() for name, x in tensors.items()}))
    wide = load(llama_copy)
    narrow = load_model(llama_copy, dtype=torch.bfloat16, device="cpu")
    assert (wide.dtype, narrow.dtype) == (torch.float32, torch.bfloat16)
    vocabulary = torch.arange(320)
    assert torch.equal(wide.network.embedding(vocabulary), narrow.network.embedding(vocabulary).float())
    logits = narrow.logits([1, 2, 3])
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, wide.logits([1, 2, 3]), rtol=0.1, atol=0.5)


def test_nothing_is_left_unloaded(hf_folder):
    """Every weight is on the device, without a gradient, and a tied head is the embedding."""
    network = load(hf_folder("llama tied")[0]).network
    tensors = [*network.parameters(), *network.buffers()]
    assert {x.device.type for x in tensors} == {"cpu"}
    assert not any(x.requires_grad for x in tensors)
    vocabulary = torch.arange(network.config.vocab_size)
    assert torch.equal(network.head.dense_weight(), network.embedding(vocabulary))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"),
            r"expected the tensor model.layers.1.mlp.up_proj.weight in .*, got no such tensor \(1 missing\)",
        ),
        (
            lambda tensors: tensors.update({"model.norm.weight": torch.ones(47)}),
            r"expected model.norm.weight of shape \(48,\) by config.json, got \(47,\)",
        ),
        (
            lambda tensors: tensors.update({"model.layers.0.self_attn.k_proj.weight": torch.ones(48, 48)}),
            r"k_proj.weight of shape \(24, 48\) by config.json, got \(48, 48\)",
        ),
        (
            lambda tensors: tensors.update({"model.norm.weight": torch.ones(48, dtype=torch.int8)}),
            "in bfloat16, float16 or float32, got torch.int8",
        ),
        (
            lambda tensors: tensors.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(48)}),
            "only the tensors of a llama network, got model.layers.0.self_attn.q_proj.bias",
        ),
    ],
    ids=["missing", "wrong size", "wrong rows", "integers", "unexpected"],
)
def test_tensors_that_do_not_fit_are_refused(llama_copy, edit, message):
    change(llama_copy, edit)
    with pytest.raises(ValueError, match=message):
        load(llama_copy)


@pytest.mark.parametrize("kept", [0, 4, 1000, -1])
def test_a_cut_off_file_is_refused(llama_copy, kept):
    data = (llama_copy / FILE).read_bytes()
    (llama_copy / FILE).write_bytes(data[:kept])
    with pytest.raises(ValueError, match=rf"expected a whole safetensors file, got {len(data[:kept])} bytes at"):
        load(llama_copy)


def test_a_missing_file_is_named(llama_copy):
    (llama_copy / FILE).unlink()
    with pytest.raises(ValueError, match=r"expected the weights in .*model\.safetensors, got no such file"):
        load(llama_copy)


def test_a_missing_shard_is_named(llama_copy):
    shard(llama_copy)
    (llama_copy / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ValueError, match=r"model-00002-of-00002\.safetensors, got no such file"):
        load(llama_copy)


def test_a_shard_outside_the_folder_is_refused(llama_copy):
    weight_map = shard(llama_copy)
    index = {"weight_map": {name: f"../{file}" for name, file in weight_map.items()}}
    (llama_copy / f"{FILE}.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"shards named \*.safetensors beside .*, got '\.\./model-0000"):
        load(llama_copy)


def test_a_broken_index_is_refused(llama_copy):
    shard(llama_copy)
    (llama_copy / f"{FILE}.index.json").write_text('{"weight_map": {"model.no')
    with pytest.raises(ValueError, match="expected JSON with a weight_map"):
        load(llama_copy)


def test_a_pickle_is_never_opened(llama_copy):
    class Trap:
        def __reduce__(self):
            return (llama_copy.joinpath("opened").touch, ())

    torch.save({"model.norm.weight": Trap()}, llama_copy / "pytorch_model.bin")
    (llama_copy / FILE).unlink()
    with pytest.raises(ValueError, match=r"got pytorch_model\.bin, a pickle, which is never opened"):
        load(llama_copy)
    assert not (llama_copy / "opened").exists()
