"""Options of a request under their Chat Completions names: where each protocol puts those that it takes.

An option that changes the answer's meaning is sent or refused, never dropped. A hint that a protocol does not take is
dropped. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias, cast

from treadle.errors import ModelError
from treadle.messages import Json

OptionWriter: TypeAlias = Callable[[Json], dict[str, Json]]
"""Turns the value of an option into fields of a request."""

OptionTable: TypeAlias = Mapping[str, OptionWriter]
"""The options that a protocol takes, by their Chat Completions names."""

HINTS = frozenset(
    (
        "metadata",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning_effort",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
        "verbosity",
    )
)
"""Options that say how to compute or account for an answer, and not what the answer is."""

_NO_EFFECT: dict[str, tuple[Json, ...]] = {
    "audio": (None,),
    "bad_words": (None, []),
    "chat_template_kwargs": (None, {}),
    "frequency_penalty": (None, 0),
    "guided_choice": (None,),
    "guided_grammar": (None,),
    "guided_json": (None,),
    "guided_regex": (None,),
    "ignore_eos": (None, False),
    "logit_bias": (None, {}),
    "logprobs": (None, False),
    "min_p": (None, 0),
    "min_tokens": (None, 0),
    "modalities": (None, ["text"]),
    "parallel_tool_calls": (None, True),
    "presence_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "structured_outputs": (None,),
    "top_k": (None, 0, -1),
    "top_logprobs": (None, 0),
    "typical_p": (None, 1),
    "web_search_options": (None,),
}
"""The options that change the meaning, and their values that change nothing."""

PROTOCOL_NAMES = frozenset(("chat", "anthropic", "responses", "ollama"))
"""A field of this name in `Sampling.extra` holds fields for models behind that protocol alone."""


def write_to(place: str) -> OptionWriter:
    """A writer that puts the value into the field `place`, such as `top_k` or `reasoning.effort`."""

    def write(value: Json) -> dict[str, Json]:
        fields = value
        for name in reversed(place.split(".")):
            fields = {name: fields}
        return fields

    return write


def write_options(
    extra: Mapping[str, Json], taken: OptionTable | None, model: str, *, ignored: frozenset[str] = frozenset()
) -> dict[str, Json]:
    """The fields for the options in `extra`.

    `taken` has the options that the protocol takes; None means all, under their own names. Those in `ignored` are
    written elsewhere. Raises `ModelError` for an option that changes the meaning and is not taken.
    """
    fields: dict[str, Json] = {}
    for name, value in extra.items():
        if name in ignored or name in PROTOCOL_NAMES:
            continue
        if taken is None:
            fields[name] = value
        elif name in taken:
            fields = merge_fields(fields, taken[name](value))
        elif name in _NO_EFFECT:
            if value not in _NO_EFFECT[name]:
                raise build_option_error(name, model)
        elif name not in HINTS:
            fields = merge_fields(fields, {name: value})
    return fields


def merge_fields(first: Mapping[str, Json], second: Mapping[str, Json]) -> dict[str, Json]:
    """Both sets of fields. Objects under the same name are merged, and lists joined; else the second value wins."""
    merged = dict(first)
    for name, value in second.items():
        old = merged.get(name)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            merged[name] = merge_fields(cast("Mapping[str, Json]", old), cast("Mapping[str, Json]", value))
        elif isinstance(old, list) and isinstance(value, list):
            merged[name] = [*cast("list[Json]", old), *cast("list[Json]", value)]
        else:
            merged[name] = value
    return merged


def build_option_error(name: str, model: str, advice: str = "leave it out, or ask another model") -> ModelError:
    """The error for an option that a model cannot take."""
    return ModelError(f"{name}: {model} does not take this option — {advice}", kind="bad_request", param=name)
