"""Chooses the tool that a request calls for, or none, by a small linear model over three views of the request.

Each view is too weak alone: the log-probabilities of the tools' names after a few examples, the language model's
embedding of the request, and its words. The weights are fitted to the tools' own examples, which corrects the
language model's preference for some names. Arguments are found elsewhere.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import random
import threading
from collections.abc import Sequence
from operator import mul

from msgspec import Struct

from treadle.messages import ToolSpec
from treadle.models.local.chat_prompt import ChatPrompt
from treadle.models.local.llama_process import LlamaEngine, Progress
from treadle.models.local.model_cache import ModelCache
from treadle.models.local.request_text import FILLERS, extract_words

RECIPE = 1
"""The version of the calibrations in the cache. Raise it when a stored one would mean something else."""

ORDERS = 2
RIDGE = 0.3
MOST_EXAMPLES = 48
LONGEST = 60
"""How many words of a request are read."""

CLEAR_LEAD = 0.25
"""From this lead over a plain answer on, a tool is chosen although the request has no word of it."""
LONGEST_STEM = 5
"""Words that begin with the same letters count as the same word ("note", "notes")."""

PLAIN = (
    "Hello!",
    "What is the capital of Spain?",
    "Thanks a lot",
    "Why is the sea salty?",
    "Tell me a joke",
    "Who was Albert Einstein?",
)
"""Requests that need no tool."""

Vector = list[float]


class Calibration(Struct):
    """The model that was fitted to the examples of one set of tools. `weights` has one row per label."""

    odds_mean: Vector
    odds_scale: float
    meaning_mean: Vector
    rarity: dict[str, float]
    weights: list[Vector]


class ToolChooser:
    """Ranks the tools of one set, and the plain answer, for a request."""

    def __init__(self, engine: LlamaEngine, chat: ChatPrompt, tools: Sequence[ToolSpec], cache: ModelCache) -> None:
        self._engine = engine
        self._chat = chat
        self._cache = cache
        tools = sorted(tools, key=lambda tool: tool.name)
        names = [tool.name for tool in tools]
        self._answer_label = next(each for each in ("answer", "reply", "say", "none of these") if each not in names)
        share = max(2, MOST_EXAMPLES // max(len(tools), 1))
        self._examples = {tool.name: list_example_requests(tool)[: min(share, 4)] for tool in tools}
        self._examples[self._answer_label] = list(PLAIN)
        self._labels = list(self._examples)
        self._prompts = [self._build_prompt(order) for order in range(ORDERS)]
        self._tokens: dict[str, list[int]] = {}
        self._lock = threading.Lock()
        self._calibration: Calibration | None = None
        self._ranked: dict[str, dict[str, float]] = {}

    def _build_prompt(self, order: int) -> str:
        """One example for each label, in an order of their own."""
        labels = random.Random(order).sample(self._labels, len(self._labels))
        shots = [(self._examples[label][order % len(self._examples[label])], label) for label in labels]
        return "".join(f"{_build_question(request)} {label}\n\n" for request, label in shots)

    async def rank_tools(self, request: str, progress: Progress | None = None) -> dict[str, float]:
        """The names of the tools with their lead over a plain answer, the likeliest first."""
        request = " ".join(request.split()[:LONGEST])
        if request not in self._ranked:
            calibration = await self._get_calibration(progress)
            odds, (meaning,) = await self._score_labels(request), await self._embed_requests([request])
            view = _build_view(calibration, odds, meaning, request)
            scores = {label: _dot(row, view) for label, row in zip(self._labels, calibration.weights, strict=True)}
            if len(self._ranked) > 256:
                self._ranked.clear()
            answer = scores.pop(self._answer_label)
            self._ranked[request] = {
                label: scores[label] - answer for label in sorted(scores, key=lambda x: -scores[x])
            }
        return self._ranked[request]

    async def _get_calibration(self, progress: Progress | None) -> Calibration:
        """The calibration, from memory or from the cache. It is computed once for each set of tools."""
        if not self._tokens:
            # The line's end belongs to the label: without it, a name may be the beginning of another name.
            self._tokens = {label: await self._engine.tokenize(f" {label}\n") for label in self._labels}
        # A lock of asyncio belongs to one event loop, and a model may serve several. So this one is polled.
        while not self._lock.acquire(blocking=False):  # noqa: ASYNC110 - held by another loop or thread
            await asyncio.sleep(0.1)
        try:
            if self._calibration is None:
                key = await self.compute_key()
                self._calibration = self._cache.read(key, Calibration)
                if self._calibration is None:
                    self._calibration = await self._calibrate(progress)
                    self._cache.write(key, self._calibration)
            return self._calibration
        finally:
            self._lock.release()

    async def compute_key(self) -> str:
        """The name of this set's calibration in the cache. It changes with every text that the fit depends on."""
        rendered = await self._chat.render([("user", "?")])
        known = repr((RECIPE, RIDGE, self._examples, self._prompts, _build_question("?"), rendered)).encode()
        return f"choose-{hashlib.sha256(known).hexdigest()[:16]}"

    async def _calibrate(self, progress: Progress | None) -> Calibration:
        examples = [(request, label) for label in self._labels for request in self._examples[label]]
        odds: list[Vector] = []
        for done, (request, _) in enumerate(examples):
            if progress:
                progress("learning the tools", done, len(examples))
            odds.append(await self._score_labels(request))
        meanings = await self._embed_requests([request for request, _ in examples])
        texts = [set(extract_words(request)) for request, _ in examples]
        counts = {word: sum(word in each for each in texts) for each in texts for word in each}
        calibration = Calibration(
            odds_mean=_average(odds),
            odds_scale=1.0,
            meaning_mean=_average(meanings),
            rarity={word: math.log((1 + len(texts)) / (1 + count)) for word, count in sorted(counts.items())},
            weights=[],
        )
        spread = [sum((a - b) ** 2 for a, b in zip(row, calibration.odds_mean, strict=True)) for row in odds]
        calibration.odds_scale = math.sqrt(sum(spread) / len(spread)) or 1.0
        views = [_build_view(calibration, a, b, r) for a, b, (r, _) in zip(odds, meanings, examples, strict=True)]
        calibration.weights = fit_weights(
            views, [self._labels.index(label) for _, label in examples], len(self._labels)
        )
        return calibration

    async def _embed_requests(self, requests: Sequence[str]) -> list[Vector]:
        prompts = [await self._chat.render([("user", request)]) for request in requests]
        return (await self._engine.embed(prompts)).vectors

    async def _score_labels(self, request: str) -> Vector:
        """The log-probability of each label as the model's next words, averaged over the orders of examples."""
        total = [0.0] * len(self._labels)
        for prompt in self._prompts:
            odds = await self._score_branches(f"{prompt}{_build_question(request)}", [], self._labels)
            total = [have + odds[label] for have, label in zip(total, self._labels, strict=True)]
        return [each / len(self._prompts) for each in total]

    async def _score_branches(self, prompt: str, path: list[int], labels: Sequence[str]) -> dict[str, float]:
        """Log-probabilities of labels whose tokens begin with `path`. The model is asked once where they part."""
        if len(labels) == 1:
            return {labels[0]: 0.0}
        branches: dict[int, list[str]] = {}
        for label in labels:
            branches.setdefault(self._tokens[label][len(path)], []).append(label)
        odds = {next(iter(branches)): 0.0}
        if len(branches) > 1:
            odds = await self._engine.score_tokens([prompt, *path], list(branches))
        return {
            label: odds[token] + deeper
            for token, group in branches.items()
            for label, deeper in (await self._score_branches(prompt, [*path, token], group)).items()
        }


def shares_telling_word(tool: ToolSpec, request: str) -> bool:
    """Whether the request has a word of the tool's: of its examples, its name or its description.

    Without one, the fit says only which tool is the least unlikely. That is so for greetings and nonsense.
    """
    texts = [tool.name.replace("_", " ").replace("-", " "), tool.description, *list_example_requests(tool)]
    known = {word[:LONGEST_STEM] for text in texts for word in extract_words(text) if word not in FILLERS}
    return any(word[:LONGEST_STEM] in known for word in extract_words(request) if word not in FILLERS)


def list_example_requests(tool: ToolSpec) -> list[str]:
    """Requests that call for the tool: its examples, or made from its description when it has none."""
    if tool.examples:
        return [request for request, _ in tool.examples]
    name = tool.name.replace("_", " ").replace("-", " ")
    purpose = (tool.description.strip().splitlines() or [name])[0].split(". ")[0].rstrip(".")
    return [f"{purpose}.", f"Please {name}", f"Can you {purpose[:1].lower()}{purpose[1:]}?", f"What is the {name}?"]


def fit_weights(views: Sequence[Vector], labels: Sequence[int], count: int) -> list[Vector]:
    """Fit by ridge regression. It is solved in the space of examples: they are fewer than the numbers in a view."""
    system = [
        [_dot(a, b) + RIDGE * (i == j) for j, b in enumerate(views)] + [(label == k) - 1 / count for k in range(count)]
        for i, (a, label) in enumerate(zip(views, labels, strict=True))
    ]
    size = len(views)
    for i in range(size):
        pivot = system[i][i]
        system[i] = [each / pivot for each in system[i]]
        for j in range(size):
            if j != i and (factor := system[j][i]):
                system[j] = [a - factor * b for a, b in zip(system[j], system[i], strict=True)]
    columns = list(zip(*views, strict=True))
    shares = list(zip(*(row[size:] for row in system), strict=True))
    return [[_dot(column, share) for column in columns] for share in shares]


def _build_view(calibration: Calibration, odds: Vector, meaning: Vector, request: str) -> Vector:
    words = set(extract_words(request))
    parts = (
        [(a - b) / calibration.odds_scale for a, b in zip(odds, calibration.odds_mean, strict=True)],
        _normalize([a - b for a, b in zip(meaning, calibration.meaning_mean, strict=True)]),
        _normalize([rarity if word in words else 0.0 for word, rarity in calibration.rarity.items()]),
    )
    return [each / math.sqrt(len(parts)) for part in parts for each in part]


def _build_question(request: str) -> str:
    return f"Request: {request}\nTool:"


def _average(rows: Sequence[Vector]) -> Vector:
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def _normalize(vector: Vector) -> Vector:
    length = math.sqrt(_dot(vector, vector)) or 1.0
    return [each / length for each in vector]


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(map(mul, a, b))
