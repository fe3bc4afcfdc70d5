"""Failed invariants are shown with their values, as in a test."""

import pytest

pytest.register_assert_rewrite("tests.crash.invariants")
