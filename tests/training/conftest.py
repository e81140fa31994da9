"""A toy target whose text can be learned in seconds, and texts as it would write them."""

import pytest
import torch

from servelab.model import toy_model
from servelab.ops import PackedCausalAttention
from servelab.training import text
from servelab.training.corpus import Shard, Text


@pytest.fixture(scope="session")
def target():
    return toy_model()


@pytest.fixture(scope="session")
def write_text(target):
    """Write a greedy text by the plain loop: no engine, no cache."""

    def write(prompt, num_tokens, greedy=True):
        tokens = list(prompt)
        for _ in range(num_tokens):
            tokens.append(int(target.logits(tokens)[-1].argmax()))
        hidden = target.hidden(tokens, range(len(tokens)), PackedCausalAttention([len(tokens)]))
        reply = [False] * len(prompt) + [True] * num_tokens
        return Text(torch.tensor(tokens), torch.tensor(reply), hidden.to(torch.bfloat16), greedy)

    return write


@pytest.fixture(scope="session")
def shard(write_text):
    """40 greedy texts; the toy repeats itself soon, which is what makes it easy to learn."""
    return Shard.pack([write_text([5 * index, 5 * index + 1, 7], 20) for index in range(40)], seconds=1.5)


@pytest.fixture(scope="module")
def short_texts():
    """Shards of 16 short texts, most of them greedy: what a run does, in a tenth of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "TEXTS_PER_SHARD", 16)
        patch.setattr(text, "REPLY_TOKENS", (8, 16))
        patch.setattr(text, "GREEDY_SHARE", 0.8)
        yield
