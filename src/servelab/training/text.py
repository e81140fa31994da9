"""Stages 1 and 2: the target writes conversations, and its hidden states are kept as it computes them.

Most of the user's questions the target writes itself: after the words with which a chat begins, what an
instruction-tuned model expects next is a question (Magpie, Xu et al. 2024). They are as various as what it was trained
on. The rest are put together (`servelab.training.prompt`).

A shard of texts is written as a whole, and depends on the seed and its own number alone: an interrupted run loses the
shard it was at, and going on gives the shards that an uninterrupted run would have given.
"""

import itertools
import random
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from servelab.engine import Engine, EngineConfig
from servelab.engine.runner import Forward, Runner
from servelab.engine.scheduler import Row
from servelab.model import Model
from servelab.sampling import SamplingParams
from servelab.training.corpus import Shard, Text
from servelab.training.prompt import PromptWriter

TEXTS_PER_SHARD = 96
SEATS = 32  # talks that go on at once
MAX_TOKENS = 512  # of one text, prompts and answers together
REPLY_TOKENS = (150, 250)  # a reply is cut somewhere between, so that ends by length are not all alike
GREEDY_SHARE = 0.55
FOLLOW_UP_SHARE = 0.2
OWN_SHARE = 0.65  # of the questions, those that the target writes
OWN_TOKENS = (4, 64)  # a question of its own that is shorter, or not at its end by then, is none
PLACE = "(here)"  # of the user's words in a chat


class TextWriter:
    """Lets the target write. seed: of prompts, lengths and draws."""

    def __init__(self, target: Model, seed: int = 0) -> None:
        self.target = target
        self.seed = seed
        self.max_tokens = min(MAX_TOKENS, target.config.max_context)
        self.engine = Engine(
            target,
            EngineConfig(
                block_size=16,
                num_blocks=SEATS * -(-self.max_tokens // 16),
                max_model_len=self.max_tokens,
                max_num_seqs=SEATS,
            ),
        )
        self.engine.runner = ListeningRunner(self.engine, self._hear)
        self.talks: dict[str, Talk] = {}  # that wait for the end of a request, by its id
        self.salts = map(str, itertools.count())

    def write(self, number: int, told: Callable[[int], object] = lambda tokens: None) -> Shard:
        """The texts of shard `number`. told: called with the reply tokens that have come since the last call."""
        started = time.perf_counter()
        first = (self.seed * 1_000_003 + number) * TEXTS_PER_SHARD
        seeds = range(first, first + TEXTS_PER_SHARD)
        talks = [Talk(self.target, seed, self.max_tokens, next(self.salts)) for seed in seeds]
        try:
            for talk in talks:
                self._ask(talk)
            while self.talks:
                outputs = [output for output in self.engine.step() if output.request_id in self.talks]
                told(sum(len(o.delta_token_ids) for o in outputs if not self.talks[o.request_id].is_asking))
                for output in outputs:
                    if output.finish_reason is not None:
                        talk = self.talks.pop(output.request_id)
                        talk.take(output.token_ids)
                        self._ask(talk)
        finally:
            for request_id in self.talks:
                self.engine.abort(request_id)
            self.talks.clear()
        return Shard.pack([talk.text() for talk in talks], time.perf_counter() - started)

    def _ask(self, talk: "Talk") -> None:
        """Let the target write what comes next, if the talk goes on."""
        if not talk.is_over:
            self.talks[self.engine.add_request(*talk.request())] = talk

    def _hear(self, request_id: str, start: int, states: Tensor) -> None:
        if request_id in self.talks:
            self.talks[request_id].hear(start, states)


class ListeningRunner(Runner):
    """Tells what each pass computed: heard(request_id, position of the first state, states [T, E])."""

    def __init__(self, engine: Engine, heard: Callable[[str, int, Tensor], None]) -> None:
        super().__init__(engine.model, engine.storage, engine.cache, engine.config.attention)
        self.heard = heard

    def run(self, rows: Sequence[Row], drafts: Sequence[Sequence[int]] = ()) -> Forward:
        forward = super().run(rows, drafts)
        states = torch.split(forward.hidden, [row.num_tokens for row in rows])
        for row, row_states in zip(rows, states, strict=True):
            self.heard(row.request.request_id, row.request.num_computed_tokens, row_states)
        return forward


class Talk:
    """One conversation, as token ids, and the target's states. Every talk draws from its own seed.

    salt: no other talk of the engine has it, for what another one has computed, this one would not hear.
    is_asking: the target is to write the user's question first. is_over: nothing is to come.
    """

    def __init__(self, target: Model, seed: int, max_tokens: int, salt: str | None = None) -> None:
        self.tokenizer = target.tokenizer
        self.max_tokens = max_tokens
        self.salt = salt
        self.random = random.Random(seed)
        self.writer = PromptWriter(seed)
        self.greedy = self.random.random() < GREEDY_SHARE
        self.is_asking = self.random.random() < OWN_SHARE
        self.is_over = False
        self.hidden = torch.zeros(max_tokens, target.config.hidden_size, dtype=torch.bfloat16)
        self.is_known = torch.zeros(max_tokens, dtype=torch.bool)  # of each state
        self._begin(next(iter(self.writer)))

    def request(self) -> tuple[list[int], SamplingParams]:
        """What the target is to go on from, and how. Half of the answers are greedy, as those who measure decode."""
        seed = self.random.getrandbits(31)
        if self.is_asking:
            before, _, _ = self.tokenizer.chat([{"role": "user", "content": PLACE}]).partition(PLACE)
            least, most = OWN_TOKENS
            params = SamplingParams(max_tokens=most, min_tokens=least, temperature=1.0, top_p=0.95, seed=seed)
            return self.tokenizer.encode(before), params
        return list(self.token_ids), SamplingParams(
            max_tokens=min(self.random.randint(*REPLY_TOKENS), self.max_tokens - len(self.token_ids)),
            temperature=0.0 if self.greedy else 0.8,
            seed=seed,
            cache_salt=self.salt,
        )

    def take(self, token_ids: Sequence[int]) -> None:
        """What the target wrote: a question, where it came to its end, or an answer, with or without one."""
        is_ended = token_ids[-1] in self.tokenizer.eos_token_ids
        tokens = list(token_ids[:-1] if is_ended else token_ids)
        if self.is_asking:
            self.is_asking = False
            text = self.tokenizer.decode(tokens).strip()
            if text and is_ended:
                self._begin(text)
            return
        self.token_ids += tokens
        self.replies += [True] * len(tokens)
        self.messages.append({"role": "assistant", "content": self.tokenizer.decode(tokens)})
        self.is_over = self.random.random() >= FOLLOW_UP_SHARE or not self._ask_again()

    def hear(self, start: int, states: Tensor) -> None:
        """The target's states [T, E] of the tokens from position `start` on."""
        if not self.is_asking:
            self.hidden[start : start + len(states)] = states.to("cpu", torch.bfloat16)
            self.is_known[start : start + len(states)] = True

    def text(self) -> Text:
        """The talk as far as the target has read it: after its last token it has computed nothing more."""
        length = int(self.is_known[: len(self.token_ids)].long().cumprod(0).sum())
        token_ids, reply = torch.tensor(self.token_ids[:length]), torch.tensor(self.replies[:length])
        return Text(token_ids, reply, self.hidden[:length].clone(), self.greedy)

    def _begin(self, question: str) -> None:
        self.messages = [{"role": "user", "content": question}]
        self.token_ids = self.tokenizer.encode(self.tokenizer.chat(self.messages))[: self.max_tokens // 2]
        self.replies = [False] * len(self.token_ids)

    def _ask_again(self) -> bool:
        """Let the user go on, whatever the answer was. Returns False where that does not fit."""
        before = self.tokenizer.chat(self.messages[:-1]) + self.messages[-1]["content"]
        self.messages.append({"role": "user", "content": self.writer.follow_up()})
        text = self.tokenizer.chat(self.messages)
        # A template may rewrite what was said before; then the tokens so far would no longer be its beginning.
        tokens = self.tokenizer.encode(text[len(before) :]) if text.startswith(before) else []
        if not tokens or len(self.token_ids) + len(tokens) + REPLY_TOKENS[0] > self.max_tokens:
            return False
        self.token_ids += tokens
        self.replies += [False] * len(tokens)
        return True
