"""Settings for every test. Fixtures live next to the tests that use them."""

import os

from hypothesis import settings

# A deadline measures the machine, not the code, when tests run side by side.
settings.register_profile("dev", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")
