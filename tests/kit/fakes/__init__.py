"""Strict fake providers over real sockets, for tests of models and of agents."""
