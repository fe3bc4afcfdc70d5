"""Secrets: the keyring, hiding them in output, and detecting them in a text."""
