"""Secrets: where keys are kept, how they are hidden in output, and how a text that holds one is recognised."""
