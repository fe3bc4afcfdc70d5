"""Which tool a request calls for, or none: a small linear model over what the language model makes of the request.

Three views of a request, each too weak alone: the log-probabilities of the tools' names after a few examples,
the language model's embedding of it, and its words. The weights are fitted to the tools' own examples, which is
what corrects the language model's liking for some names. Not where arguments are found.
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
from treadle.models.local import request_text as text
from treadle.models.local.chat_prompt import ChatPrompt
from treadle.models.local.llama_process import LlamaEngine, Progress
from treadle.models.local.model_cache import ModelCache

RECIPE = 1
"""To be raised when what is stored here would mean something else."""

ORDERS = 2
RIDGE = 0.3
MOST_EXAMPLES = 48
LONGEST = 60
"""Words of a request that are looked at."""

PLAIN = (
    "Hello!",
    "What is the capital of Spain?",
    "Thanks a lot",
    "Why is the sea salty?",
    "Tell me a joke",
    "Who was Albert Einstein?",
)
"""Requests that no tool is needed for."""

Vector = list[float]


class Calibration(Struct):
    """What was learnt from the examples of one set of tools. `weights` has a row for each label."""

    odds_mean: Vector
    odds_scale: float
    meaning_mean: Vector
    rarity: dict[str, float]
    weights: list[Vector]


class ToolChooser:
    """Ranks the tools of one set and the plain answer for a request."""

    def __init__(self, engine: LlamaEngine, chat: ChatPrompt, tools: Sequence[ToolSpec], store: ModelCache) -> None:
        self._engine = engine
        self._chat = chat
        self._store = store
        tools = sorted(tools, key=lambda tool: tool.name)
        names = [tool.name for tool in tools]
        self.answer_label = next(each for each in ("answer", "reply", "say", "none of these") if each not in names)
        each = max(2, MOST_EXAMPLES // max(len(tools), 1))
        self._examples = {tool.name: list_example_requests(tool)[: min(each, 4)] for tool in tools}
        self._examples[self.answer_label] = list(PLAIN)
        self._labels = list(self._examples)
        self._shots = [self._prefix(order) for order in range(ORDERS)]
        self._tokens: dict[str, list[int]] = {}
        self._busy = threading.Lock()
        self._calibration: Calibration | None = None
        self._ranked: dict[str, list[str]] = {}

    def _prefix(self, order: int) -> str:
        labels = random.Random(order).sample(self._labels, len(self._labels))
        shots = [(self._examples[label][order % len(self._examples[label])], label) for label in labels]
        return "".join(f"{_question(request)} {label}\n\n" for request, label in shots)

    async def rank_tools(self, request: str, progress: Progress | None = None) -> list[str]:
        """The names of the tools, and `answer`, the likeliest first."""
        request = " ".join(request.split()[:LONGEST])
        if request not in self._ranked:
            calibration = await self._calibrated(progress)
            odds, (meaning,) = await self._odds(request), await self._meanings([request])
            view = _view(calibration, odds, meaning, request)
            scores = {label: _dot(row, view) for label, row in zip(self._labels, calibration.weights, strict=True)}
            if len(self._ranked) > 256:
                self._ranked.clear()
            self._ranked[request] = sorted(scores, key=lambda label: -scores[label])
        return self._ranked[request]

    async def _calibrated(self, progress: Progress | None) -> Calibration:
        if not self._tokens:
            # With the line's end, so that a name that begins another one ends where the other goes on.
            self._tokens = {label: await self._engine.tokenize(f" {label}\n") for label in self._labels}
        # Polled, because a lock of asyncio belongs to one event loop and a model may serve several.
        while not self._busy.acquire(blocking=False):  # noqa: ASYNC110 - held by another loop or thread
            await asyncio.sleep(0.1)
        try:
            return await self._recalled(progress)
        finally:
            self._busy.release()

    async def _recalled(self, progress: Progress | None) -> Calibration:
        if self._calibration is None:
            known = repr((RECIPE, self._examples, self._shots)).encode()
            key = f"choose-{hashlib.sha256(known).hexdigest()[:16]}"
            self._calibration = self._store.read(key, Calibration)
            if self._calibration is None:
                self._calibration = await self._calibrate(progress)
                self._store.write(key, self._calibration)
        return self._calibration

    async def _calibrate(self, progress: Progress | None) -> Calibration:
        examples = [(request, label) for label in self._labels for request in self._examples[label]]
        odds: list[Vector] = []
        for done, (request, _) in enumerate(examples):
            if progress:
                progress("learning the tools", done, len(examples))
            odds.append(await self._odds(request))
        meanings = await self._meanings([request for request, _ in examples])
        said = [set(text.extract_words(request)) for request, _ in examples]
        seen = {word: sum(word in each for each in said) for each in said for word in each}
        calibration = Calibration(
            odds_mean=_mean(odds),
            odds_scale=1.0,
            meaning_mean=_mean(meanings),
            rarity={word: math.log((1 + len(said)) / (1 + count)) for word, count in sorted(seen.items())},
            weights=[],
        )
        spread = [sum((a - b) ** 2 for a, b in zip(row, calibration.odds_mean, strict=True)) for row in odds]
        calibration.odds_scale = math.sqrt(sum(spread) / len(spread)) or 1.0
        views = [_view(calibration, a, b, r) for a, b, (r, _) in zip(odds, meanings, examples, strict=True)]
        calibration.weights = fit_weights(
            views, [self._labels.index(label) for _, label in examples], len(self._labels)
        )
        return calibration

    async def _meanings(self, requests: Sequence[str]) -> list[Vector]:
        return await self._engine.embed([await self._chat.render([("user", request)]) for request in requests])

    async def _odds(self, request: str) -> Vector:
        """The log-probability of each label as the model's next words, averaged over the orders of examples."""
        total = [0.0] * len(self._labels)
        for shots in self._shots:
            odds = await self._walk(f"{shots}{_question(request)}", [], self._labels)
            total = [have + odds[label] for have, label in zip(total, self._labels, strict=True)]
        return [each / len(self._shots) for each in total]

    async def _walk(self, prompt: str, path: list[int], labels: Sequence[str]) -> dict[str, float]:
        """Log-probabilities of labels whose tokens begin with `path`: one look at each place where they part."""
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
            for label, deeper in (await self._walk(prompt, [*path, token], group)).items()
        }


def list_example_requests(tool: ToolSpec) -> list[str]:
    """Requests that call for the tool: its examples, or what its description suggests when it has none."""
    if tool.examples:
        return [request for request, _ in tool.examples]
    name = tool.name.replace("_", " ").replace("-", " ")
    purpose = (tool.description.strip().splitlines() or [name])[0].split(". ")[0].rstrip(".")
    return [f"{purpose}.", f"Please {name}", f"Can you {purpose[:1].lower()}{purpose[1:]}?", f"What is the {name}?"]


def fit_weights(views: Sequence[Vector], labels: Sequence[int], count: int) -> list[Vector]:
    """Ridge regression, solved among the examples because there are fewer of them than numbers in a view."""
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


def _view(calibration: Calibration, odds: Vector, meaning: Vector, request: str) -> Vector:
    said = set(text.extract_words(request))
    parts = (
        [(a - b) / calibration.odds_scale for a, b in zip(odds, calibration.odds_mean, strict=True)],
        _unit([a - b for a, b in zip(meaning, calibration.meaning_mean, strict=True)]),
        _unit([rarity if word in said else 0.0 for word, rarity in calibration.rarity.items()]),
    )
    return [each / math.sqrt(len(parts)) for part in parts for each in part]


def _question(request: str) -> str:
    return f"Request: {request}\nTool:"


def _mean(rows: Sequence[Vector]) -> Vector:
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def _unit(vector: Vector) -> Vector:
    length = math.sqrt(_dot(vector, vector)) or 1.0
    return [each / length for each in vector]


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(map(mul, a, b))
