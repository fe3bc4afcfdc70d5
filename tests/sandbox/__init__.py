"""Tests of the sandbox: real commands in a real sandbox, and the same without one."""
