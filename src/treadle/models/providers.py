"""The providers, one row each. A new OpenAI-compatible vendor needs a row here and nothing else."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from treadle.models import remote
from treadle.models.chat_completions import Quirks
from treadle.models.remote import WindowProbe
from treadle.models.wire_format import MISTRAL_IDS

ProtocolName = Literal["chat", "anthropic", "responses", "ollama"]


class Provider(Struct, frozen=True):
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
    limit_field="max_completion_tokens", recovers_text_calls=False, sends_cache_key=True, accepts_files=True
)
_REPLAYING = Quirks(replays_reasoning=True)
# Chat templates of open models often refuse a system message that is not the first.
_TEMPLATED = Quirks(system_role="")

PROVIDERS: dict[str, Provider] = {
    "anthropic": Provider(
        "https://api.anthropic.com/v1",
        ("ANTHROPIC_API_KEY",),
        url_variable="ANTHROPIC_BASE_URL",
        protocol="anthropic",
        headers=(("anthropic-version", "2023-06-01"),),
        default_model="claude-sonnet-5-5",
    ),
    "openai": Provider(
        "https://api.openai.com/v1",
        ("OPENAI_API_KEY",),
        url_variable="OPENAI_BASE_URL",
        protocol="responses",
        compatible_protocol="chat",
        default_model="gpt-6.1-sol",
    ),
    "openai-chat": Provider("https://api.openai.com/v1", ("OPENAI_API_KEY",), quirks=_OPENAI),
    "openai-responses": Provider("https://api.openai.com/v1", ("OPENAI_API_KEY",), protocol="responses"),
    "openrouter": Provider(
        "https://openrouter.ai/api/v1",
        ("OPENROUTER_API_KEY",),
        quirks=Quirks(replays_reasoning=True, accepts_files=True),
    ),
    "gemini": Provider(
        "https://generativelanguage.googleapis.com/v1beta/openai",
        ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        quirks=Quirks(needs_thought_signatures=True),
    ),
    "mistral": Provider(
        "https://api.mistral.ai/v1",
        ("MISTRAL_API_KEY",),
        quirks=Quirks(seed_field="random_seed", accepts_stream_options=False, id_rule=MISTRAL_IDS),
    ),
    "deepseek": Provider(
        "https://api.deepseek.com/v1",
        ("DEEPSEEK_API_KEY",),
        quirks=Quirks(replays_reasoning=True, schema_mode="json_object"),
    ),
    "moonshot": Provider("https://api.moonshot.ai/v1", ("MOONSHOT_API_KEY",), quirks=_REPLAYING),
    "zai": Provider(
        "https://api.z.ai/api/paas/v4",
        ("ZAI_API_KEY",),
        quirks=Quirks(replays_reasoning=True, schema_mode="json_object"),
    ),
    "groq": Provider("https://api.groq.com/openai/v1", ("GROQ_API_KEY",)),
    "together": Provider("https://api.together.xyz/v1", ("TOGETHER_API_KEY",)),
    "fireworks": Provider("https://api.fireworks.ai/inference/v1", ("FIREWORKS_API_KEY",)),
    "cerebras": Provider("https://api.cerebras.ai/v1", ("CEREBRAS_API_KEY",)),
    "xai": Provider("https://api.x.ai/v1", ("XAI_API_KEY",)),
    "deepinfra": Provider("https://api.deepinfra.com/v1/openai", ("DEEPINFRA_API_KEY",)),
    "nvidia": Provider("https://integrate.api.nvidia.com/v1", ("NVIDIA_API_KEY",)),
    "huggingface": Provider("https://router.huggingface.co/v1", ("HF_TOKEN",)),
    "ollama": Provider(
        "http://127.0.0.1:11434",
        ("OLLAMA_API_KEY",),
        url_variable="OLLAMA_HOST",
        protocol="ollama",
        probe=remote.probe_ollama,
        is_local=True,
    ),
    "llamacpp": Provider(
        "http://127.0.0.1:8080/v1",
        url_variable="LLAMACPP_BASE_URL",
        quirks=Quirks(replays_reasoning=True, system_role=""),
        probe=remote.probe_llama_server,
        is_local=True,
    ),
    "lmstudio": Provider(
        "http://127.0.0.1:1234/v1",
        url_variable="LMSTUDIO_BASE_URL",
        quirks=_TEMPLATED,
        probe=remote.probe_lm_studio,
        is_local=True,
    ),
    "vllm": Provider(
        "http://127.0.0.1:8000/v1",
        ("VLLM_API_KEY",),
        url_variable="VLLM_BASE_URL",
        quirks=_TEMPLATED,
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
