"""Publishing as a flow: where a deployment may push to, what a token may be, and which failures are tried again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tokenlake.config.references import scrub
from tokenlake.errors import (
    ConfigError,
    IntegrityError,
    NotFoundError,
    SourceError,
    StoreError,
    VersionConflictError,
)
from tokenlake.prefect.maintenance import check_reference, may_pass, token_of
from tokenlake.prefect.policy import check_repository


@pytest.mark.parametrize(
    ("allowed", "repo", "fine"),
    [
        (None, "anybody/x", True),
        ("/data/tokens:hf://datasets/our-org", "our-org/x", True),
        ("hf://datasets/our-org/x", "our-org/x", True),
        ("hf://datasets/our-org/x", "our-org/xy", False),
        ("hf://datasets/our-org", "our-organization/x", False),
        ("hf://datasets/our-org", "their-org/our-org", False),
        ("hf://datasets/our-org", "our-org/../their-org", False),
        ("/data/tokens", "our-org/x", False),
        ("", "our-org/x", False),
    ],
)
def test_a_deployment_pushes_only_where_its_worker_allows(allowed: str | None, repo: str, fine: bool) -> None:
    environment = {} if allowed is None else {"TOKENLAKE_ALLOWED_OUTPUTS": allowed}
    if fine:
        check_repository(repo, environment)
    else:
        with pytest.raises(ConfigError, match=r"the repository: .*TOKENLAKE_ALLOWED_OUTPUTS"):
            check_repository(repo, environment)


def test_a_token_is_a_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    assert token_of(check_reference(None)) is None
    monkeypatch.setenv("LAKE_HUB_TOKEN", "hf_only_for_this_test")
    assert token_of(check_reference({"env": "LAKE_HUB_TOKEN"})) == "hf_only_for_this_test"
    assert "only_for" not in scrub("it was hf_only_for_this_test")
    for literal in ({"token": "hf_secret"}, {"env": ""}, {"env": "A", "block": "b"}):
        with pytest.raises(ConfigError, match="name where the token is kept") as refused:
            check_reference(literal)
        assert "hf_secret" not in str(refused.value)
    with pytest.raises(ConfigError, match="is not set"):
        token_of({"env": "LAKE_NOT_SET"})


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (StoreError("the Hub failed"), True),
        (SourceError("the Hub could not be reached"), True),
        (NotFoundError("no such version"), False),
        (VersionConflictError("another one's"), False),
        (ConfigError("a secret"), False),
        (IntegrityError("damage"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_only_passing_failures_are_tried_again(error: Exception, again: bool) -> None:
    state: Any = SimpleNamespace(result=lambda raise_on_failure: error)
    nothing: Any = None
    assert may_pass(nothing, nothing, state) is again
