"""Real client programs against a real server: `make clients`. The tests of `make test` do not need them."""
