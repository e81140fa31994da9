"""Stages 1 and 2: the target answers prompts, then its hidden states are computed in a prefill of what it wrote.

Most prompts it writes itself: after the words with which a chat begins, what an instruction-tuned model expects next is
a user's question (Magpie, Xu et al. 2024). That is as various as what it was trained on. The rest are put together.

A shard of texts is written as a whole, and depends on the seed and its own number alone: an interrupted run loses the
shard it was at, and going on gives the shards that an uninterrupted run would have given.
"""

import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence

import torch

from servelab.engine import Engine, EngineConfig
from servelab.model import Model
from servelab.ops import PackedCausalAttention
from servelab.sampling import SamplingParams
from servelab.training.corpus import Shard, Text
from servelab.training.prompt import PromptWriter

TEXTS_PER_SHARD = 32
MAX_TOKENS = 512  # of one text, prompts and answers together
REPLY_TOKENS = (150, 250)  # a reply is cut somewhere between, so that ends by length are not all alike
GREEDY_SHARE = 0.55
FOLLOW_UP_SHARE = 0.2
OWN_SHARE = 0.65  # of prompts, those that the target writes
OWN_TOKENS = (4, 64)  # a prompt of its own that is shorter, or not at its end by then, is none
PREFILL_TOKENS = 1024
PLACE = "(here)"  # of the user's words in a chat


class TextWriter:
    """Lets the target write. seed: of prompts, lengths and draws."""

    def __init__(self, target: Model, seed: int = 0) -> None:
        self.target = target
        self.seed = seed
        self.max_tokens = min(MAX_TOKENS, target.config.max_context)
        block_size = 16
        blocks = TEXTS_PER_SHARD * -(-self.max_tokens // block_size)
        self.engine = Engine(
            target,
            EngineConfig(
                block_size=block_size,
                num_blocks=blocks,
                max_model_len=self.max_tokens,
                max_num_seqs=TEXTS_PER_SHARD,
            ),
        )

    def write(self, number: int, told: Callable[[int], object] = lambda tokens: None) -> Shard:
        """The texts of shard `number`. told: called with the reply tokens that have come since the last call."""
        started = time.perf_counter()
        conversations = Conversations(self.target, self.seed * 1_000_003 + number, self.max_tokens)
        asking = conversations.own()
        if asking:
            opening, params = conversations.opening(), conversations.question_params(asking)
            conversations.begin(self._generate([opening] * len(asking), params), asking)
        conversations.answer(self._generate(conversations.prompts(), conversations.params(), told))
        again = conversations.ask_again()
        if again:
            conversations.answer(self._generate(conversations.prompts(again), conversations.params(again), told), again)
        return Shard.pack(self._with_hidden(conversations), time.perf_counter() - started)

    def _generate(
        self,
        prompts: Sequence[list[int]],
        params: Sequence[SamplingParams],
        told: Callable[[int], object] = lambda tokens: None,
    ) -> list[list[int]]:
        """The outputs, without an end token."""
        ids = [self.engine.add_request(prompt, choice) for prompt, choice in zip(prompts, params, strict=True)]
        outputs: dict[str, list[int]] = {}
        try:
            while self.engine.has_unfinished():
                step = self.engine.step()
                told(sum(len(output.delta_token_ids) for output in step))
                outputs |= {output.request_id: output.token_ids for output in step}
        finally:
            for request_id in ids:
                self.engine.abort(request_id)
        ends = self.target.tokenizer.eos_token_ids
        texts = [outputs[request_id] for request_id in ids]
        return [tokens[:-1] if tokens[-1] in ends else tokens for tokens in texts]

    def _with_hidden(self, conversations: "Conversations") -> list[Text]:
        texts: list[Text] = []
        for group in groups(conversations.token_ids, PREFILL_TOKENS):
            lengths = [len(conversations.token_ids[index]) for index in group]
            token_ids = [token for index in group for token in conversations.token_ids[index]]
            positions = [position for length in lengths for position in range(length)]
            hidden = self.target.hidden(token_ids, positions, PackedCausalAttention(lengths)).to("cpu", torch.bfloat16)
            for index, rows in zip(group, torch.split(hidden, lengths), strict=True):
                texts.append(
                    Text(
                        torch.tensor(conversations.token_ids[index]),
                        torch.tensor(conversations.replies[index]),
                        rows,
                        conversations.greedy[index],
                    )
                )
        return texts


class Conversations:
    """The talks of one shard, as token ids: what the user said and what the target answered."""

    def __init__(self, target: Model, seed: int, max_tokens: int) -> None:
        self.tokenizer = target.tokenizer
        self.max_tokens = max_tokens
        self.random = random.Random(seed)
        self.writer = PromptWriter(seed)
        self.seeds = [self.random.getrandbits(31) for _ in range(TEXTS_PER_SHARD)]
        self.greedy = [self.random.random() < GREEDY_SHARE for _ in range(TEXTS_PER_SHARD)]
        self.messages = [
            [{"role": "user", "content": prompt}] for prompt in itertools.islice(self.writer, TEXTS_PER_SHARD)
        ]
        self.token_ids = [self._encode(talk) for talk in self.messages]
        self.replies = [[False] * len(tokens) for tokens in self.token_ids]

    def own(self) -> list[int]:
        """Draw those whose prompt the target shall write."""
        return [index for index in range(len(self.messages)) if self.random.random() < OWN_SHARE]

    def opening(self) -> list[int]:
        """What stands before the user's first word."""
        before, _, _ = self.tokenizer.chat([{"role": "user", "content": PLACE}]).partition(PLACE)
        return self.tokenizer.encode(before)

    def question_params(self, which: Sequence[int]) -> list[SamplingParams]:
        least, most = OWN_TOKENS
        return [
            SamplingParams(max_tokens=most, min_tokens=least, temperature=1.0, top_p=0.95, seed=self.seeds[index])
            for index in which
        ]

    def begin(self, questions: Sequence[list[int]], which: Sequence[int]) -> None:
        """Let the talks begin with what the target asked, where that came to its end; the others keep their prompt."""
        for index, tokens in zip(which, questions, strict=True):
            text = self.tokenizer.decode(tokens).strip()
            if text and len(tokens) < OWN_TOKENS[1]:
                self.messages[index] = [{"role": "user", "content": text}]
                self.token_ids[index] = self._encode(self.messages[index])
                self.replies[index] = [False] * len(self.token_ids[index])

    def _encode(self, talk: list[dict[str, str]]) -> list[int]:
        return self.tokenizer.encode(self.tokenizer.chat(talk))[: self.max_tokens // 2]

    def prompts(self, which: Sequence[int] | None = None) -> list[list[int]]:
        return [list(self.token_ids[index]) for index in self._those(which)]

    def params(self, which: Sequence[int] | None = None) -> list[SamplingParams]:
        """A length and a temperature for each: half of the texts are greedy, as those who measure decode."""
        return [
            SamplingParams(
                max_tokens=min(self.random.randint(*REPLY_TOKENS), self.max_tokens - len(self.token_ids[index])),
                temperature=0.0 if self.greedy[index] else 0.8,
                seed=self.seeds[index],
            )
            for index in self._those(which)
        ]

    def answer(self, outputs: Sequence[list[int]], which: Sequence[int] | None = None) -> None:
        for index, tokens in zip(self._those(which), outputs, strict=True):
            self.token_ids[index] += tokens
            self.replies[index] += [True] * len(tokens)
            self.messages[index].append({"role": "assistant", "content": self.tokenizer.decode(tokens)})

    def ask_again(self) -> list[int]:
        """Let the user go on in some of the talks; return which."""
        asked = []
        for index in range(len(self.messages)):
            if self.random.random() >= FOLLOW_UP_SHARE:
                continue
            before = self.tokenizer.chat(self.messages[index][:-1]) + self.messages[index][-1]["content"]
            self.messages[index].append({"role": "user", "content": self.writer.follow_up()})
            text = self.tokenizer.chat(self.messages[index])
            # A template may rewrite what was said before; then the tokens so far would no longer be its beginning.
            tokens = self.tokenizer.encode(text[len(before) :]) if text.startswith(before) else []
            if tokens and len(self.token_ids[index]) + len(tokens) + REPLY_TOKENS[0] <= self.max_tokens:
                self.token_ids[index] += tokens
                self.replies[index] += [False] * len(tokens)
                asked.append(index)
        return asked

    def _those(self, which: Sequence[int] | None) -> Sequence[int]:
        return range(len(self.messages)) if which is None else which


def groups(texts: Sequence[Sequence[int]], num_tokens: int) -> Iterator[list[int]]:
    """Indices of texts in groups of about `num_tokens` tokens, in order."""
    group: list[int] = []
    for index in range(len(texts)):
        group.append(index)
        if sum(len(texts[member]) for member in group) >= num_tokens:
            yield group
            group = []
    if group:
        yield group
