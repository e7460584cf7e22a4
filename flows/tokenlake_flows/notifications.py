"""Messages about failed runs and damaged versions.

Automations of the Prefect server send them to a webhook.

``python -m tokenlake_flows.notifications https://hooks.example.org/tokenlake`` creates
the automations, or replaces those that exist. It needs a server and no worker: the
server itself sends the messages.
"""

from __future__ import annotations

import sys
from inspect import cleandoc
from typing import Any, Final
from urllib.parse import urlsplit

from prefect import get_client
from prefect.blocks.webhook import Webhook
from prefect.events.schemas.automations import AutomationCore
from pydantic import SecretStr

from tokenlake.base.yaml_file import parse_yaml
from tokenlake.errors import ConfigError
from tokenlake.runs.request import DEPLOYMENTS
from tokenlake_flows.settings import configured_api_url

BLOCK: Final = "tokenlake"
"""Name of the block that holds the URL, which may be a secret."""

_FILE: Final = DEPLOYMENTS / "automations" / "notify.yaml"
_WEBHOOK: Final = "WEBHOOK"


def notify(url: str) -> list[str]:
    """Create the automations that send messages to a URL.

    Args:
        url: URL of a webhook, http or https.

    Returns:
        Names of the automations.

    Raises:
        ConfigError: The URL is not one of http or https, or no server is configured.
    """
    # The URL may be a secret, so that a message shows only its scheme.
    url_parts = urlsplit(url)
    if url_parts.scheme not in ("http", "https") or not url_parts.hostname:
        received = "not a text"
        if url_parts.scheme:
            received = f"one that begins with {url_parts.scheme}:"
        raise ConfigError(
            f"the URL of the webhook: got {received}, expected https://HOST/PATH"
        )
    if configured_api_url() is None:
        raise ConfigError(
            "no Prefect server is configured: set PREFECT_API_URL, such as http://127.0.0.1:4200/api"
        )
    # The automations refer to the block by its id, which only the server knows.
    headers: Any = {"content-type": "application/json"}
    block: Any = Webhook(url=SecretStr(url), headers=headers)
    block.save(BLOCK, overwrite=True)
    block_reference = f"block_document_id: {block._block_document_id}"
    placeholder = f"block_document_id: {_WEBHOOK}"
    yaml_text = _FILE.read_text("utf-8").replace(placeholder, block_reference)
    entries: Any = parse_yaml(yaml_text, str(_FILE)).data
    automations = [AutomationCore.model_validate(entry) for entry in entries]
    with get_client(sync_client=True) as client:
        for automation in automations:
            # An existing automation of the same name is replaced.
            for old in client.read_automations_by_name(automation.name):
                client.delete_automation(old.id)
            client.create_automation(automation)
    return [automation.name for automation in automations]


def main(arguments: list[str]) -> int:
    """Create the automations, print their names, and return the exit code."""
    if set(arguments) & {"-h", "--help"}:
        sys.stdout.write(f"{cleandoc(__doc__ or '')}\n")
        return 0
    try:
        if len(arguments) != 1:
            raise ConfigError(
                'expected one argument, the URL of a webhook that takes {"text": ...}'
            )
        sys.stdout.write(f"created {', '.join(notify(arguments[0]))}\n")
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
