"""The tests are a package, so that they can share what they check with: `from tests.kit.strict import StrictModel`."""
