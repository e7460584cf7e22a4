"""Secret blocks of the Prefect server, which configurations name ``{block: NAME}``."""

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
    for block_name in names:
        subject = f"storage_options: {{block: {block_name}}}"
        try:
            secret_block: Any = Secret.load(block_name.removeprefix("secret/"))
        except ValueError as error:
            # Prefect's message may hold more than its first line, and values in it.
            first_line = scrub(str(error).splitlines()[0])
            raise ConfigError(
                f"{subject}: the Prefect server has no Secret block with this name ({first_line}). "
                "Create it on the page Blocks of the server, or write {env: NAME}",
                block=block_name,
            ) from None
        secret: Any = secret_block.get()
        # A block may hold any JSON. Its value is never shown, only its type.
        if not isinstance(secret, str) or not secret:
            raise ConfigError(
                f"{subject} holds {type(secret).__name__}, expected a text",
                block=block_name,
            )
        # A worker's owner bounds the secrets that runs of deployments may use.
        bounds.require_secret(block_name, secret)
        values[block_name] = secret
    return values
