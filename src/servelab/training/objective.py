"""What a draft head is trained for, and what it is measured by.

loss:        cross-entropy to the target's own distribution, which says more of a position than the one token drawn
             there, plus a distance to the target's state, which the next step goes on from; the mean over all steps
acceptance:  a draft as the engine would make it: k tokens, kept up to the first that is not the target's most likely
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from servelab.model import Model
from servelab.speculative.head import HeadNetwork, output_rows
from servelab.training.corpus import Text
from servelab.training.unroll import unroll


class Target:
    """Of the target, what training needs: embedding, final norm, and the output rows of the draft vocabulary."""

    def __init__(self, model: Model, vocabulary: Tensor) -> None:
        self.model = model
        self.vocabulary = vocabulary
        weight = output_rows(model, vocabulary).float()
        with torch.device("meta"):
            self.rows = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        self.rows.weight = nn.Parameter(weight, requires_grad=False)
        self.places = torch.full((model.config.vocab_size,), -1)  # of each token in the vocabulary, or -1
        self.places[vocabulary] = torch.arange(len(vocabulary))

    @torch.no_grad()
    def embeddings(self, token_ids: Tensor) -> Tensor:
        """[T] -> [T, E] float32."""
        embeddings: Tensor = self.model.network.embedding(token_ids).float()
        return embeddings

    @torch.no_grad()
    def normalised(self, hidden: Tensor) -> Tensor:
        """[T, E] -> [T, E] float32: what the output projection sees."""
        normalised: Tensor = self.model.network.norm(hidden.to(self.model.dtype)).float()
        return normalised

    @torch.no_grad()
    def best_tokens(self, hidden: Tensor) -> Tensor:
        """The most likely next token after each state: [T, E] -> [T]."""
        return self.model.project(hidden.to(self.model.dtype)).argmax(-1)


def loss(
    network: HeadNetwork,
    target: Target,
    texts: Sequence[Text],
    num_steps: int,
    hidden_weight: float,
    candidates: Tensor | None = None,
) -> Tensor:
    """The mean loss of a batch over the steps of an unrolled draft: a scalar.

    candidates: [C] places in the vocabulary that the distributions are taken over, by default all: see
    `draw_candidates`.
    """
    lengths = [len(text) for text in texts]
    token_ids = torch.cat([text.token_ids for text in texts])
    hidden = torch.cat([text.hidden for text in texts]).float()
    learned = torch.cat([positions_to_learn(text, target.places >= 0) for text in texts]).nonzero().flatten()
    rows = target.rows.weight if candidates is None else target.rows.weight[candidates]
    normalised = target.normalised(hidden[learned])
    probabilities = F.linear(normalised, rows).softmax(-1)  # [N, C]
    total = torch.zeros(())
    for guessed in unroll(network, hidden, target.embeddings(token_ids), lengths, num_steps):
        state = network.norm(guessed[learned])
        cross_entropy = F.cross_entropy(F.linear(state, rows), probabilities)
        distance = F.smooth_l1_loss(state, normalised) / normalised.square().mean()
        total = total + cross_entropy + hidden_weight * distance
    return total / num_steps


def draw_candidates(target: Target, texts: Sequence[Text], number: int, generator: torch.Generator) -> Tensor:
    """Places [number] in the vocabulary: of all tokens in these texts, and of others that are drawn at random.

    More than half of training goes into the output projection, and nearly all that it says of a batch, it says of
    the tokens in it: to be told from some others is enough, when the others change from batch to batch.
    """
    score = torch.rand(len(target.vocabulary), generator=generator)
    places = target.places[torch.cat([text.token_ids for text in texts])]
    score[places[places >= 0]] += 1.0
    return score.topk(min(number, len(score))).indices


def positions_to_learn(text: Text, drafted: Tensor) -> Tensor:
    """[N] bool: the token here is the target's, and what it wrote next, if anything, can be drafted."""
    unfit = text.reply[1:] & ~drafted[text.token_ids[1:]]
    return text.reply & ~torch.cat((unfit, torch.zeros(1, dtype=torch.bool)))


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Greedy acceptance on texts that were not trained on.

    per_position: of the drafts that got so far, the share accepted at draft position 1, 2, ... k.
    tokens_per_step: tokens of one target step, the bonus token included, with drafts of k tokens throughout.
    """

    per_position: tuple[float, ...]
    tokens_per_step: float


class Measure:
    """Measures heads on the same texts. Their replies must be greedy: a draft that is right is then the text's own.

    k: length of the drafts.
    """

    def __init__(self, target: Target, texts: Sequence[Text], k: int) -> None:
        self.target, self.texts, self.k = target, list(texts), k
        self.best = [target.best_tokens(text.hidden) for text in self.texts]

    @torch.no_grad()
    def __call__(self, network: HeadNetwork) -> Acceptance:
        """Decode each reply as the engine would: draft k tokens, keep those before the first that is wrong, go on."""
        reached, accepted, steps, tokens = [0] * self.k, [0] * self.k, 0, 0
        for text, best in zip(self.texts, self.best, strict=True):
            right = self._right(network, text, best)
            place = 0
            while place + self.k < len(text):
                if not bool(text.reply[place : place + self.k].all()):
                    place += 1
                    continue
                kept = int(right[torch.arange(self.k), place + torch.arange(self.k)].long().cumprod(0).sum())
                for position in range(min(kept + 1, self.k)):
                    reached[position] += 1
                    accepted[position] += position < kept
                steps += 1
                tokens += kept + 1
                place += kept + 1
        shares = tuple(a / r if r else 0.0 for a, r in zip(accepted, reached, strict=True))
        return Acceptance(shares, tokens / steps if steps else 0.0)

    def _right(self, network: HeadNetwork, text: Text, best: Tensor) -> Tensor:
        """[k, N] bool: whether draft token `step` is right where the draft began `step` tokens earlier."""
        embeddings = self.target.embeddings(text.token_ids)
        steps = unroll(network, text.hidden.float(), embeddings, [len(text)], self.k)
        guesses = [network.logits(guessed, self.target.rows).argmax(-1) for guessed in steps]
        return torch.stack([self.target.vocabulary[guess] == best for guess in guesses])
