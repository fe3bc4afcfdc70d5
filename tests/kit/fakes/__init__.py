"""Strict fake providers over real sockets, for tests of models and of what runs on them."""
