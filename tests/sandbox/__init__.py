"""Tests of the sandbox: real commands behind real walls, and the same without them."""
