"""The engine's own process: loads one GGUF file with llama.cpp and serves it on a private socket.

llama_process.py runs it as a plain script, so it imports nothing of treadle. It ends when its parent does.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import shutil
import signal
import sys
from typing import Any

PR_SET_PDEATHSIG = 1


def main() -> None:
    settings = json.loads(sys.argv[1])

    def exit_now(*_: object) -> None:
        shutil.rmtree(settings["folder"], ignore_errors=True)
        os._exit(0)

    signal.signal(signal.SIGTERM, exit_now)
    if sys.platform == "linux":
        # The end of standard input is noticed too late: loading blocks the interpreter, and standard input is not read.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != settings["parent"]:
        exit_now()
    try:
        _server = start_server(settings)
    except RuntimeError as error:
        sys.exit(f"{error}")
    sys.stdin.buffer.read()
    exit_now()


def start_server(settings: dict[str, Any]) -> object:
    xllamacpp: Any = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = settings["path"]
    params.hostnames = [settings["socket"]]
    params.cpuparams.n_threads = settings["threads"]
    params.cpuparams_batch.n_threads = settings["threads"]
    params.n_parallel = settings["slots"]
    params.n_ctx = settings["cells"]
    params.kv_unified = True
    params.kv_unified_per_slot = settings["window"]
    params.n_batch = params.n_ubatch = settings["batch"]
    params.cache_ram_mib = settings["cache_mib"]
    params.embedding = True
    params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    params.ui = False
    params.endpoint_slots = False
    params.cors_origins = ""
    params.offline = True
    params.verbosity = -1
    return xllamacpp.Server(params)


if __name__ == "__main__":
    main()
