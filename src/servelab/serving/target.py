"""Any OpenAI-compatible server, seen from outside: is it there, which models it has, does it answer, its `/metrics`.

Only the standard library and Prometheus' own parser: nothing here needs the course's server, its engine or torch.
"""

import http.client
import json
import math
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from servelab.translation import _

TIMEOUT_S = 10.0
FIRST_ANSWER_S = 300.0  # a server may compile at its first request

# vLLM's names; the course's own server has the same.
KV_USAGE, RUNNING, WAITING = "vllm:kv_cache_usage_perc", "vllm:num_requests_running", "vllm:num_requests_waiting"


class TargetFailed(Exception):
    """One sentence: what was asked of a server, and what came instead."""


@dataclass(frozen=True, slots=True)
class Card:
    """A model that a server has. root: the folder or hub id that it was loaded from, where the server tells."""

    name: str
    root: str | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """A server's address, without `/v1`, and the key that it wants, if any.

    Raises ValueError for what is no http address.
    """

    url: str
    api_key: str | None = None

    def __post_init__(self) -> None:
        parts = urllib.parse.urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(_("expected an address such as http://127.0.0.1:8000, got {url!r}").format(url=self.url))
        object.__setattr__(self, "url", self.url.rstrip("/").removesuffix("/v1").rstrip("/"))

    def models(self) -> list[Card]:
        """What `/v1/models` lists. Raises TargetFailed where nobody answers, or something else does."""
        answer = self._json("/v1/models")
        try:
            return [Card(str(card["id"]), card.get("root")) for card in answer["data"]]
        except (KeyError, TypeError, AttributeError):
            raise TargetFailed(
                _("Expected a list of models from {url}/v1/models, got {answer}").format(
                    url=self.url, answer=f"{answer!r:.80}"
                )
            ) from None

    def model(self, name: str | None) -> Card:
        """The model of this name, or the only one. Raises TargetFailed with the names that there are."""
        cards = self.models()
        chosen = [card for card in cards if name is None or card.name == name]
        if len(chosen) == 1:
            return chosen[0]
        names = ", ".join(card.name for card in cards) or _("none")
        if name is None:
            sentence = _("Expected one model at {url}, or --model with one of these: {names}")
        else:
            sentence = _("Expected a model of {url} ({names}), got {name!r}")
        raise TargetFailed(sentence.format(url=self.url, names=names, name=name))

    def try_model(self, name: str, chat: bool) -> None:
        """Ask for one token, so that a refusal is told before the load. Raises TargetFailed with the server's words."""
        body: dict[str, Any] = {"model": name, "max_tokens": 1, "temperature": 0}
        body |= {"messages": [{"role": "user", "content": "Hello"}]} if chat else {"prompt": "Hello"}
        self._json("/v1/chat/completions" if chat else "/v1/completions", body, FIRST_ANSWER_S)

    def metrics_text(self) -> str:
        """What `/metrics` says. Raises TargetFailed where there is none."""
        return self._read("/metrics").decode("utf-8", errors="replace")

    def metrics(self) -> dict[str, float]:
        """Counters and gauges of `/metrics` by name, summed over their labels. Raises TargetFailed."""
        return sums(self.metrics_text())

    def _json(self, path: str, body: Mapping[str, Any] | None = None, timeout_s: float = TIMEOUT_S) -> Any:
        content = self._read(path, None if body is None else json.dumps(body).encode(), timeout_s)
        try:
            return json.loads(content)
        except ValueError:
            raise TargetFailed(
                _("Expected JSON from {url}, got {content}: is it an OpenAI-compatible server?").format(
                    url=self.url + path, content=f"{content[:60]!r}"
                )
            ) from None

    def _read(self, path: str, body: bytes | None = None, timeout_s: float = TIMEOUT_S) -> bytes:
        headers = {"Content-Type": "application/json"} if body else {}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        request = urllib.request.Request(self.url + path, data=body, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                content: bytes = answer.read()
                return content
        except urllib.error.HTTPError as error:
            raise TargetFailed(
                _("{url} answers {status}: {reason}").format(url=self.url + path, status=error.code, reason=said(error))
            ) from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise TargetFailed(
                _("No answer from {url} ({reason}): is the server running?").format(url=self.url, reason=reason)
            ) from None


def said(error: urllib.error.HTTPError) -> str:
    """The message in an error's body, as OpenAI's form has it, or the status in words."""
    try:
        content = json.loads(error.read())
        message = content["error"]["message"] if "error" in content else content["detail"]
        return str(message)[:300]
    except (OSError, ValueError, KeyError, TypeError):
        return str(error.reason)


def families(text: str) -> dict[str, list[float]]:
    """Values of each counter and gauge in Prometheus' text, by name, one for each set of labels.

    Raises ValueError for another form.
    """
    from prometheus_client.parser import text_string_to_metric_families

    found: dict[str, list[float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if family.type in ("counter", "gauge", "unknown") and not sample.name.endswith("_created"):
                found.setdefault(sample.name, []).append(float(sample.value))
    return found


def sums(text: str) -> dict[str, float]:
    """Counters and gauges by name, summed over their labels; a usage is a share, so its mean is taken."""
    return {
        name: math.fsum(values) / (len(values) if name == KV_USAGE else 1) for name, values in families(text).items()
    }
