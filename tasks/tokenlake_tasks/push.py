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
from tokenlake_tasks.events import PUSHED, called, emit
from tokenlake_tasks.retries import is_worth_another_push, retried


@retried("push-version", "{dataset} v{version} to {repo}", is_worth_another_push)
def push(
    store: str, dataset: str, version: int, repo: str, branch: str, token: Mapping[str, str], strict: bool
) -> PushReport:
    """Publish one version in a private repository; another try sends what is missing."""
    name, secret = f"{dataset}@v{version}", token_of(token)
    report = push_to_hub(store, repo, name=name, revision=branch, token=secret, strict=strict)
    log = get_run_logger()
    log.info("%s: %s at %s, %s", report.outcome, report.tag, report.url, numbers.size(report.bytes))
    for finding in report.findings:
        log.warning("looks like a secret: %s", finding)
    facts = called(open_store(store).url, dataset, version)
    emit(PUSHED, facts | {"url": report.url, "tag": report.tag})
    return report


def check_reference(token: Mapping[str, str] | None) -> dict[str, str]:
    """Return a reference to a token; empty: the worker's own.

    Raises:
        ConfigError: it is no reference; what it is, is not shown.
    """
    found = dict(token or {})
    if found and (set(found) not in ({"env"}, {"block"}) or not all(found.values())):
        raise ConfigError(
            'token: expected {"env": NAME} or {"block": NAME}, which name where the token is kept'
        )
    return found


def token_of(reference: Mapping[str, str]) -> str | None:
    """Return the token that a reference names; None: the worker's own.

    Raises:
        ConfigError: there is no such variable or block.
    """
    if "block" in reference:
        provide_blocks(load_blocks([reference["block"]]))
    return str(resolve_options({"token": reference})["token"]) if reference else None
