"""The task `push`: one version to the Hugging Face Hub."""

from __future__ import annotations

from collections.abc import Mapping

from prefect.logging import get_run_logger

from tokenlake.base import numbers
from tokenlake.base.secrets import provide_blocks, resolve_options
from tokenlake.errors import ConfigError
from tokenlake.etl.publish import PushReport, push_to_hub
from tokenlake.runtime.store.address import open_store
from tokenlake_tasks.blocks import load_blocks
from tokenlake_tasks.events import PUSHED, emit, version_facts
from tokenlake_tasks.retries import is_worth_another_push, retried


@retried("push-version", "{dataset} v{version} to {repo}", is_worth_another_push)
def push(
    store: str,
    dataset: str,
    version: int,
    repo: str,
    branch: str,
    token: Mapping[str, str],
    strict: bool,
) -> PushReport:
    """Publish one version in a private repository; another try sends the missing files."""
    version_name = f"{dataset}@v{version}"
    # The token itself is read only here: parameters of runs are shown on the server.
    report = push_to_hub(
        store,
        repo,
        name=version_name,
        revision=branch,
        token=token_of(token),
        strict=strict,
    )
    run_logger = get_run_logger()
    run_logger.info(
        "%s: %s at %s, %s",
        report.outcome,
        report.tag,
        report.url,
        numbers.size(report.bytes),
    )
    for finding in report.findings:
        run_logger.warning("looks like a secret: %s", finding)
    event_facts = version_facts(open_store(store).url, dataset, version)
    emit(PUSHED, event_facts | {"url": report.url, "tag": report.tag})
    return report


def check_reference(token: Mapping[str, str] | None) -> dict[str, str]:
    """Return a checked reference to a token.

    An empty one stands for the worker's own token.

    Raises:
        ConfigError: The value is not a reference. The message does not show it, because
            it may be the token itself.
    """
    reference = dict(token or {})
    # Exactly one key with a name. Anything else may be a token that was pasted.
    is_reference = set(reference) in ({"env"}, {"block"}) and all(reference.values())
    if reference and not is_reference:
        raise ConfigError(
            'token: expected {"env": NAME} or {"block": NAME}, which names where the token is stored'
        )
    return reference


def token_of(reference: Mapping[str, str]) -> str | None:
    """Return the token that a reference names; None for the worker's own.

    Raises:
        ConfigError: The variable or block does not exist.
    """
    if not reference:
        return None
    if "block" in reference:
        provide_blocks(load_blocks([reference["block"]]))
    return str(resolve_options({"token": reference})["token"])
