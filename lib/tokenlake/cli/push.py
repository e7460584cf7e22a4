"""``tokenlake push``."""

from __future__ import annotations

import os
from collections import Counter
from typing import Annotated

from cyclopts import Parameter

from tokenlake import numbers
from tokenlake.cli.console import AsJson, Name, StoreUrl, emit, note
from tokenlake.cli.progress import counting
from tokenlake.config.stores import default_store
from tokenlake.errors import ConfigError
from tokenlake.publish.push import SCANNED_ROWS, PushReport, push_to_hub
from tokenlake.reports.terminal import stdout

_SHOWN = 5


def push(
    name: Name,
    /,
    *,
    repo: str,
    public: bool = False,
    revision: Annotated[str, Parameter(metavar="BRANCH")] = "main",
    message: str | None = None,
    token_env: Annotated[str | None, Parameter(metavar="NAME")] = None,
    scan_data: Annotated[int, Parameter(metavar="N")] = SCANNED_ROWS,
    strict: bool = False,
    dry_run: bool = False,
    store: StoreUrl = None,
    json: AsJson = False,
) -> int:
    """Upload a version to a dataset repository of the Hugging Face Hub, private unless --public is given.

    This uploads the files that the manifest lists: shards, tokenizer, configuration, card, ledger and the manifest.
    Each file is compared with its hash first; all of them go up in one commit with a tag such as v3. The quarantine,
    the runs and files that the manifest does not list are never uploaded. A version that is there already is not sent
    again. An interrupted push leaves nothing visible, and the same command continues it.

    Texts and Parquet metadata are searched for secrets: known forms of credentials, random values under names such as
    `password`, and the secrets of this process and its environment. Any of them stops the push. A few rows of each
    shard are decoded and searched, too; a finding there is reported, or stops the push with --strict.

    `load_dataset("org/name", revision="v3")` reads the version. `hf download org/name --repo-type dataset --revision v3
    --local-dir STORE/NAME/v3` makes it a version of a store again, without its quarantine.

    Args:
        repo: The dataset repository, org/name; it is created if it does not exist.
        public: Make the repository public, or push to a public one.
        revision: The branch to push to. Default: main.
        message: Message of the commit. Default: the name and number of the version.
        token_env: The environment variable that holds the token. Default: HF_TOKEN, then the saved login.
        scan_data: Rows of each shard to decode and search for secrets; 0 for none. Default: 8.
        strict: Let secrets in rows stop the push, too.
        dry_run: Check and search, and print what a push would do; needs no token.
    """
    if scan_data < 0:
        raise ConfigError(f"--scan-data is a number of rows, 0 or more; got {scan_data}")
    with counting("pushing") as counter:
        report = push_to_hub(
            store or default_store(),
            repo,
            name=name,
            public=public,
            revision=revision,
            message=message,
            token=_token(token_env),
            dry_run=dry_run,
            scan_data=scan_data,
            strict=strict,
            on_progress=lambda progress: counter.set(progress.bytes, progress.bytes_total),
        )
    _warn(report)
    emit(report.to_json(), json, lambda: stdout().print(_told(report)))
    return 0


def _token(variable: str | None) -> str | None:
    if variable is None:
        return None
    token = os.environ.get(variable, "").strip()
    if not token:
        raise ConfigError(
            f"--token-env {variable}: there is no such environment variable, or it is empty; set it to a "
            "token with write access"
        )
    return token


def _told(report: PushReport) -> str:
    what = f"{report.dataset} v{report.version}"
    there = f"{report.url} ({'private' if report.private else 'public'}, {report.branch})"
    size = f"{numbers.plural(report.files, 'file')}, {numbers.size(report.bytes)}"
    match report.outcome:
        case "unchanged":
            return f"{what} is at {report.url} already, as {report.tag}; nothing was sent"
        case "tagged":
            return (
                f"{what} was already at {there}; it now has the tag {report.tag}, and nothing else was sent"
            )
        case "would tag":
            return f"{what} is already at {there}; a push would only set the tag {report.tag}"
        case "would push":
            unseen = ", which nobody without a token can see"
            new = unseen if report.created is None else ", which it would create" if report.created else ""
            return f"{what} would go to {there}{new}, as {report.tag}: {size}; nothing was sent"
        case "pushed":
            return f"{what} is at {there}, as {report.tag}: {size}"


def _warn(report: PushReport) -> None:
    """Say how much in the sampled rows looks like a secret, and where; never what."""
    if not report.findings:
        return
    kinds = Counter(finding.kind for finding in report.findings)
    counts = ", ".join(f"{kind}: {count}" for kind, count in kinds.most_common())
    note(
        f"warning: {numbers.plural(len(report.findings), 'place')} in {numbers.plural(report.scanned_rows, 'row')} of "
        f"the data {'looks' if len(report.findings) == 1 else 'look'} like secrets ({counts}):"
    )
    for finding in report.findings[:_SHOWN]:
        note(f"  {finding}")
