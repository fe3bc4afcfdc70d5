"""The embedded model: llama.cpp in a process of its own, driven so that even a very small model can use tools."""
