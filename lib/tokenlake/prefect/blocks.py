"""Values of Prefect's Secret blocks: from the server to the library, and to nowhere else.

A configuration names a block (``{block: NAME}``); flow parameters, logs, manifests and errors hold this name.
The value is read inside the flow run that needs it, stays in its memory, and reaches the worker processes
through their pipes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from prefect.blocks.system import Secret

from tokenlake.config.references import scrub
from tokenlake.errors import ConfigError
from tokenlake.prefect.policy import require_secret


def load_blocks(names: Iterable[str]) -> dict[str, str]:
    """Return the values of blocks by name.

    Raises:
        ConfigError: there is no such block, or it holds no text; for a deployment's run also if that is no secret.
    """
    return {name: _load(name) for name in names}


def _load(name: str) -> str:
    try:
        block: Any = Secret.load(name.removeprefix("secret/"))
    except ValueError as error:
        raise ConfigError(
            f"storage_options: {{block: {name}}}: the Prefect server has no Secret block of this name "
            f"({scrub(str(error).splitlines()[0])}). Create it on the page Blocks of its interface, or write "
            "{env: NAME}",
            block=name,
        ) from None
    value: Any = block.get()
    if not isinstance(value, str) or not value:
        raise ConfigError(
            f"storage_options: {{block: {name}}} holds {type(value).__name__}, expected a text", block=name
        )
    require_secret(name, value)
    return value
