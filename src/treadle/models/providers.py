"""The providers: one row each. A new OpenAI-compatible vendor is a row here and nothing else."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from treadle.models.chat_completions import Quirks
from treadle.models.request_parts import MISTRAL_IDS

Protocol = Literal["chat", "anthropic", "responses", "ollama"]
Asked = Literal["", "props", "studio", "show", "models"]


class Row(Struct, frozen=True, kw_only=True):
    """How one provider is reached.

    `key` names the variables that may hold its key and `address` one that may hold another base URL. `elsewhere`
    is the protocol of servers that only look like it; `window` says how a server is asked for the window.
    """

    base_url: str
    key: tuple[str, ...] = ()
    address: str = ""
    protocol: Protocol = "chat"
    elsewhere: Protocol | None = None
    quirks: Quirks = Quirks()
    headers: tuple[tuple[str, str], ...] = ()
    window: Asked = ""
    local: bool = False
    default: str = ""


_OPENAI = Quirks(
    max_tokens="max_completion_tokens",
    text_calls=False,
    think_tags=False,
    cache_key=True,
    files=True,
)
_REPLAYING = Quirks(replay_reasoning=True)

PROVIDERS: dict[str, Row] = {
    "anthropic": Row(
        base_url="https://api.anthropic.com/v1",
        key=("ANTHROPIC_API_KEY",),
        address="ANTHROPIC_BASE_URL",
        protocol="anthropic",
        headers=(("anthropic-version", "2023-06-01"),),
        default="claude-sonnet-5-5",
    ),
    "openai": Row(
        base_url="https://api.openai.com/v1",
        key=("OPENAI_API_KEY",),
        address="OPENAI_BASE_URL",
        protocol="responses",
        elsewhere="chat",
        default="gpt-6.1-sol",
    ),
    "openai-chat": Row(base_url="https://api.openai.com/v1", key=("OPENAI_API_KEY",), quirks=_OPENAI),
    "openai-responses": Row(base_url="https://api.openai.com/v1", key=("OPENAI_API_KEY",), protocol="responses"),
    "openrouter": Row(
        base_url="https://openrouter.ai/api/v1",
        key=("OPENROUTER_API_KEY",),
        quirks=Quirks(replay_reasoning=True, files=True),
    ),
    "gemini": Row(
        base_url="https://generativelanguage.googleapis.com/v1beta/openai",
        key=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        quirks=Quirks(thought_signatures=True),
    ),
    "mistral": Row(
        base_url="https://api.mistral.ai/v1",
        key=("MISTRAL_API_KEY",),
        quirks=Quirks(seed="random_seed", stream_usage=False, ids=MISTRAL_IDS),
    ),
    "deepseek": Row(
        base_url="https://api.deepseek.com/v1",
        key=("DEEPSEEK_API_KEY",),
        quirks=Quirks(replay_reasoning=True, schema="json_object"),
    ),
    "moonshot": Row(base_url="https://api.moonshot.ai/v1", key=("MOONSHOT_API_KEY",), quirks=_REPLAYING),
    "zai": Row(
        base_url="https://api.z.ai/api/paas/v4",
        key=("ZAI_API_KEY",),
        quirks=Quirks(replay_reasoning=True, schema="json_object"),
    ),
    "groq": Row(base_url="https://api.groq.com/openai/v1", key=("GROQ_API_KEY",)),
    "together": Row(base_url="https://api.together.xyz/v1", key=("TOGETHER_API_KEY",)),
    "fireworks": Row(base_url="https://api.fireworks.ai/inference/v1", key=("FIREWORKS_API_KEY",)),
    "cerebras": Row(base_url="https://api.cerebras.ai/v1", key=("CEREBRAS_API_KEY",)),
    "xai": Row(base_url="https://api.x.ai/v1", key=("XAI_API_KEY",)),
    "deepinfra": Row(base_url="https://api.deepinfra.com/v1/openai", key=("DEEPINFRA_API_KEY",)),
    "nvidia": Row(base_url="https://integrate.api.nvidia.com/v1", key=("NVIDIA_API_KEY",)),
    "huggingface": Row(base_url="https://router.huggingface.co/v1", key=("HF_TOKEN",)),
    "ollama": Row(
        base_url="http://127.0.0.1:11434",
        key=("OLLAMA_API_KEY",),
        address="OLLAMA_HOST",
        protocol="ollama",
        window="show",
        local=True,
    ),
    "llamacpp": Row(
        base_url="http://127.0.0.1:8080/v1",
        address="LLAMACPP_BASE_URL",
        quirks=_REPLAYING,
        window="props",
        local=True,
    ),
    "lmstudio": Row(base_url="http://127.0.0.1:1234/v1", address="LMSTUDIO_BASE_URL", window="studio", local=True),
    "vllm": Row(
        base_url="http://127.0.0.1:8000/v1",
        key=("VLLM_API_KEY",),
        address="VLLM_BASE_URL",
        window="models",
        local=True,
    ),
}

UNNAMED = Row(base_url="", window="models", local=True)
"""Any OpenAI-compatible server that is only known by its address. Taken for slow, as those at home are."""

HINTS = {
    "gpt": "openai",
    "o1": "openai",
    "o3": "openai",
    "o4": "openai",
    "chatgpt": "openai",
    "claude": "anthropic",
    "gemini": "gemini",
    "mistral": "mistral",
    "codestral": "mistral",
    "deepseek": "deepseek",
    "grok": "xai",
    "kimi": "moonshot",
    "glm": "zai",
    "llama": "ollama",
    "qwen": "ollama",
    "gemma": "ollama",
    "phi": "ollama",
}
"""How model names begin, and whose they most likely are; only for the message about an unknown name."""
