"""The base of fake models: a test adds `stream`."""


class FakeModel:
    """The rest of the model port: a name, no known window, nothing to close."""

    name, window = "fake", None

    async def close(self) -> None:
        pass
