"""The providers, one row each. A new OpenAI-compatible vendor needs a row here and nothing else."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from treadle.models import remote
from treadle.models.chat_completions import Quirks
from treadle.models.remote import WindowProbe
from treadle.models.wire_format import MISTRAL_IDS

ProtocolName = Literal["chat", "anthropic", "responses", "ollama"]


class Provider(Struct, frozen=True, kw_only=True):
    """How to reach one provider.

    `key_variables` may hold its key, and `url_variable` may hold another base URL. Servers at another URL speak
    `compatible_protocol`. `probe` asks the server for a model's window.
    """

    base_url: str
    key_variables: tuple[str, ...] = ()
    url_variable: str = ""
    protocol: ProtocolName = "chat"
    compatible_protocol: ProtocolName | None = None
    quirks: Quirks = Quirks()
    headers: tuple[tuple[str, str], ...] = ()
    probe: WindowProbe | None = None
    is_local: bool = False
    default_model: str = ""


_OPENAI = Quirks(
    limit_field="max_completion_tokens",
    recovers_text_calls=False,
    splits_think_tags=False,
    sends_cache_key=True,
    accepts_files=True,
)
_REPLAYING = Quirks(replays_reasoning=True)

PROVIDERS: dict[str, Provider] = {
    "anthropic": Provider(
        base_url="https://api.anthropic.com/v1",
        key_variables=("ANTHROPIC_API_KEY",),
        url_variable="ANTHROPIC_BASE_URL",
        protocol="anthropic",
        headers=(("anthropic-version", "2023-06-01"),),
        default_model="claude-sonnet-5-5",
    ),
    "openai": Provider(
        base_url="https://api.openai.com/v1",
        key_variables=("OPENAI_API_KEY",),
        url_variable="OPENAI_BASE_URL",
        protocol="responses",
        compatible_protocol="chat",
        default_model="gpt-6.1-sol",
    ),
    "openai-chat": Provider(base_url="https://api.openai.com/v1", key_variables=("OPENAI_API_KEY",), quirks=_OPENAI),
    "openai-responses": Provider(
        base_url="https://api.openai.com/v1", key_variables=("OPENAI_API_KEY",), protocol="responses"
    ),
    "openrouter": Provider(
        base_url="https://openrouter.ai/api/v1",
        key_variables=("OPENROUTER_API_KEY",),
        quirks=Quirks(replays_reasoning=True, accepts_files=True),
    ),
    "gemini": Provider(
        base_url="https://generativelanguage.googleapis.com/v1beta/openai",
        key_variables=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        quirks=Quirks(needs_thought_signatures=True),
    ),
    "mistral": Provider(
        base_url="https://api.mistral.ai/v1",
        key_variables=("MISTRAL_API_KEY",),
        quirks=Quirks(seed_field="random_seed", accepts_stream_options=False, id_rule=MISTRAL_IDS),
    ),
    "deepseek": Provider(
        base_url="https://api.deepseek.com/v1",
        key_variables=("DEEPSEEK_API_KEY",),
        quirks=Quirks(replays_reasoning=True, schema_mode="json_object"),
    ),
    "moonshot": Provider(base_url="https://api.moonshot.ai/v1", key_variables=("MOONSHOT_API_KEY",), quirks=_REPLAYING),
    "zai": Provider(
        base_url="https://api.z.ai/api/paas/v4",
        key_variables=("ZAI_API_KEY",),
        quirks=Quirks(replays_reasoning=True, schema_mode="json_object"),
    ),
    "groq": Provider(base_url="https://api.groq.com/openai/v1", key_variables=("GROQ_API_KEY",)),
    "together": Provider(base_url="https://api.together.xyz/v1", key_variables=("TOGETHER_API_KEY",)),
    "fireworks": Provider(base_url="https://api.fireworks.ai/inference/v1", key_variables=("FIREWORKS_API_KEY",)),
    "cerebras": Provider(base_url="https://api.cerebras.ai/v1", key_variables=("CEREBRAS_API_KEY",)),
    "xai": Provider(base_url="https://api.x.ai/v1", key_variables=("XAI_API_KEY",)),
    "deepinfra": Provider(base_url="https://api.deepinfra.com/v1/openai", key_variables=("DEEPINFRA_API_KEY",)),
    "nvidia": Provider(base_url="https://integrate.api.nvidia.com/v1", key_variables=("NVIDIA_API_KEY",)),
    "huggingface": Provider(base_url="https://router.huggingface.co/v1", key_variables=("HF_TOKEN",)),
    "ollama": Provider(
        base_url="http://127.0.0.1:11434",
        key_variables=("OLLAMA_API_KEY",),
        url_variable="OLLAMA_HOST",
        protocol="ollama",
        probe=remote.probe_ollama,
        is_local=True,
    ),
    "llamacpp": Provider(
        base_url="http://127.0.0.1:8080/v1",
        url_variable="LLAMACPP_BASE_URL",
        quirks=_REPLAYING,
        probe=remote.probe_llama_server,
        is_local=True,
    ),
    "lmstudio": Provider(
        base_url="http://127.0.0.1:1234/v1",
        url_variable="LMSTUDIO_BASE_URL",
        probe=remote.probe_lm_studio,
        is_local=True,
    ),
    "vllm": Provider(
        base_url="http://127.0.0.1:8000/v1",
        key_variables=("VLLM_API_KEY",),
        url_variable="VLLM_BASE_URL",
        probe=remote.probe_model_list,
        is_local=True,
    ),
}


def list_key_variables() -> set[str]:
    """The names of all variables that may hold a provider's key."""
    return {variable for provider in PROVIDERS.values() for variable in provider.key_variables}


UNNAMED_PROVIDER = Provider(base_url="", probe=remote.probe_model_list, is_local=True)
"""Any OpenAI-compatible server that is known only by its URL. It gets the time limits of a local server."""

NAME_HINTS = {
    "openai": ("gpt", "o1", "o3", "o4", "chatgpt"),
    "anthropic": ("claude",),
    "gemini": ("gemini",),
    "mistral": ("mistral", "codestral"),
    "deepseek": ("deepseek",),
    "xai": ("grok",),
    "moonshot": ("kimi",),
    "zai": ("glm",),
    "ollama": ("llama", "qwen", "gemma", "phi"),
}
"""How the names of a provider's models begin. Used only in the message about an unknown name."""
