"""Secret blocks of the Prefect server, which configurations refer to as ``{block:
NAME}``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from prefect.blocks.system import Secret

from tokenlake.base.secrets import scrub
from tokenlake.errors import ConfigError
from tokenlake_tasks.bounds import bounds_of_run


def load_blocks(names: Iterable[str]) -> dict[str, str]:
    """Return the values of blocks by name.

    Raises:
        ConfigError: There is no such block, or it holds no text; in a deployment's run
            also if the text is no secret.
    """
    bounds = bounds_of_run()
    values: dict[str, str] = {}
    for name in names:
        what = f"storage_options: {{block: {name}}}"
        try:
            block: Any = Secret.load(name.removeprefix("secret/"))
        except ValueError as error:
            why = f"the Prefect server has no Secret block with this name ({scrub(str(error).splitlines()[0])})"
            how = "Create it on the page Blocks of the server, or write {env: NAME}"
            raise ConfigError(f"{what}: {why}. {how}", block=name) from None
        value: Any = block.get()
        if not isinstance(value, str) or not value:
            raise ConfigError(
                f"{what} holds {type(value).__name__}, expected a text", block=name
            )
        bounds.require_secret(name, value)
        values[name] = value
    return values
