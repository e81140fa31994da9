"""Thousands of random requests, aborted at every phase, in a pool that is far too small, with drafts."""

import random
from collections import Counter

import pytest

from servelab.engine import Engine, EngineConfig
from servelab.sampling import SamplingParams
from servelab.trace import Copy, Evict, Fork, Hit, Preempt, Verify

BLOCK_SIZE, NUM_BLOCKS, MAX_NUM_SEQS = 4, 24, 6
LONGEST = BLOCK_SIZE * NUM_BLOCKS


class Client:
    """Sends random requests, goes away now and then, and keeps account of what comes back."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self.engine = engine
        self.random = random.Random(seed)
        self.systems = [[self.random.randrange(256) for _ in range(size)] for size in (8, 11, 20)]
        self.sent: dict[str, SamplingParams] = {}
        self.ends: Counter[str] = Counter()
        self.left: set[str] = set()
        self.texts: dict[tuple[str, int], str] = {}
        self.open: dict[str, set[int]] = {}

    def send(self, number: int) -> None:
        choice = self.random
        prompt = list(choice.choice(self.systems)) if choice.random() < 0.5 else []
        prompt += [choice.randrange(choice.choice((4, 256))) for _ in range(choice.randint(1, 30))]
        params = SamplingParams(
            max_tokens=min(choice.choice((1, 2, 5, 20, 40)), LONGEST - len(prompt)),
            temperature=choice.choice((0.0, 0.0, 1.0)),
            top_k=choice.choice((0, 5)),
            seed=number,
            n=choice.choice((1, 1, 1, 2, 3)),
            ignore_eos=choice.random() < 0.5,
            stop_token_ids=(choice.randrange(256),),
            stop=("a", "zz") if choice.random() < 0.2 else (),
            min_tokens=choice.choice((0, 0, 1)),
            repetition_penalty=choice.choice((1.0, 1.0, 1.3)),
            logprobs=choice.choice((None, None, 2)),
            cache_salt=choice.choice((None, None, "tenant")),
        )
        self.sent[str(number)] = params
        self.open[str(number)] = set(range(params.n))
        self.engine.add_request(prompt, params, str(number))

    def leave(self) -> None:
        """Abort somebody: who waits, who is in mid-prefill, who decodes, or who is not forked yet."""
        if self.open:
            request_id = self.random.choice(list(self.open))
            self.left.add(request_id)
            self.engine.abort(request_id)

    def step(self) -> None:
        for output in self.engine.step():
            key = (output.request_id, output.index)
            self.texts[key] = self.texts.get(key, "") + output.delta_text
            assert self.texts[key] == output.text
            if output.finish_reason is None:
                continue
            params = self.sent[output.request_id]
            self.open[output.request_id].remove(output.index)  # KeyError: a second end
            if not self.open[output.request_id]:
                del self.open[output.request_id]
            self.ends[output.finish_reason] += 1
            assert len(output.token_ids) <= params.max_tokens
            assert output.finish_reason != "length" or len(output.token_ids) == params.max_tokens
            assert output.finish_reason != "abort" or output.request_id in self.left
            assert (output.logprobs is not None) == (params.logprobs is not None)
            del self.texts[key]
        self.engine.cache.check_integrity()


def soak(engine: Engine, num_requests: int, seed: int) -> Client:
    client = Client(engine, seed)
    sent = steps = 0
    while sent < num_requests or engine.has_unfinished():
        while sent < num_requests and len(client.open) < 12:
            client.send(sent)
            sent += 1
        if client.random.random() < 0.08:
            client.leave()
        client.step()
        steps += 1
        assert steps < 60 * num_requests, "requests do not come to an end"
    assert client.open == {}
    return client


@pytest.mark.parametrize(
    ("speculating", "num_requests", "seed"),
    [
        *[(name, 120, 0) for name in ("n-gram", "draft model", "draft head")],
        pytest.param("n-gram", 1500, 1, marks=pytest.mark.slow),
        pytest.param("n-gram", 1500, 2, marks=pytest.mark.slow),
        pytest.param("draft model", 1000, 3, marks=pytest.mark.slow),
        pytest.param("draft head", 1000, 4, marks=pytest.mark.slow),
    ],
)
def test_every_step_is_whole_and_every_block_comes_back(
    toy_model, speculation, assert_empty, speculating, num_requests, seed
):
    engine = Engine(
        toy_model,
        EngineConfig(
            block_size=BLOCK_SIZE,
            num_blocks=NUM_BLOCKS,
            max_num_seqs=MAX_NUM_SEQS,
            max_num_batched_tokens=24,
            speculative=speculation(speculating, k=3, adaptive=True),
        ),
    )
    client = soak(engine, num_requests, seed)
    assert_empty(engine)
    assert sum(client.ends.values()) == sum(params.n for params in client.sent.values())
    assert set(client.ends) == {"stop", "length", "abort"}
    # Nothing of what could go wrong was left out.
    seen = Counter(type(event) for step in engine.trace.steps for event in step.events)
    assert all(seen[kind] for kind in (Preempt, Hit, Evict, Fork, Copy, Verify)), seen
