"""The embedded model: llama.cpp in a process of its own, driven so that even a very small model can use tools.

Importing this loads nothing: the engine is started, and weights are fetched, when a request first needs them.
"""

from treadle.models.local.local_model import LocalModel, LocalStatus

__all__ = ["LocalModel", "LocalStatus"]
