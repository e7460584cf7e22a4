"""``tokenlake push``."""

from __future__ import annotations

import os
from collections import Counter
from typing import Annotated

from cyclopts import Parameter

from tokenlake.cli.options import AsJson, Name, StoreUrl, store_url
from tokenlake.cli.output import note, print_json, stdout
from tokenlake.cli.progress import counting
from tokenlake.errors import ConfigError
from tokenlake.publish.push import SCANNED_ROWS, PushReport
from tokenlake.publish.push import push as publish
from tokenlake.publish.repository import HubTarget
from tokenlake.report import numbers
from tokenlake.store.address import open_read_store
from tokenlake.store.catalog import Catalog

_SHOWN = 5


def push(
    name: Name,
    /,
    *,
    repo: Annotated[str, Parameter(help="The dataset's repository, org/name; made where there is none.")],
    public: Annotated[
        bool,
        Parameter(negative="", show_default=False, help="Make it public, or push to one that is public."),
    ] = False,
    revision: Annotated[str, Parameter(metavar="BRANCH", help="The branch to push to.")] = "main",
    message: Annotated[
        str | None,
        Parameter(help="Of the commit. Default: the name and number of the version.", show_default=False),
    ] = None,
    token_env: Annotated[
        str | None,
        Parameter(
            metavar="NAME",
            help="The variable that holds the token. Default: HF_TOKEN, then the saved login.",
            show_default=False,
        ),
    ] = None,
    scan_data: Annotated[
        int, Parameter(metavar="N", help="Rows of each shard to decode and search for secrets; 0 for none.")
    ] = SCANNED_ROWS,
    strict: Annotated[
        bool, Parameter(negative="", show_default=False, help="Refuse for what is found in rows, too.")
    ] = False,
    dry_run: Annotated[
        bool,
        Parameter(
            negative="",
            show_default=False,
            help="Look, search, and say what a push would do; needs no token.",
        ),
    ] = False,
    store: StoreUrl = None,
    json: AsJson = False,
) -> int:
    """Upload a version to a dataset repository of the Hugging Face Hub, private unless --public is given.

    What goes up is what the manifest lists, each file compared with its hash first, in one commit with the tag v3:
    the shards, tokenizer, configuration, card, ledger and the manifest itself. Never: the quarantine, runs and files
    that are not listed. A version that is there already is not sent again; an interrupted push shows nothing, and the
    same command goes on where it ended.

    Texts and Parquet metadata are searched for secrets (known shapes of credentials, random values behind telling
    names, and the secrets of this process and its environment); one of them refuses the push. Of each shard a few rows
    are decoded and searched; what is found there is told, or refuses the push with --strict.

    `load_dataset("org/name", revision="v3")` reads it. `hf download org/name --repo-type dataset --revision v3
    --local-dir STORE/NAME/v3` makes it a version of a store again, without its quarantine.
    """
    if scan_data < 0:
        raise ConfigError(f"--scan-data is a number of rows, 0 or more; got {scan_data}")
    target = HubTarget(repo, revision, _token(token_env))
    found = open_read_store(store_url(store))
    dataset, version = Catalog(found).resolve(name)
    with counting("pushing") as counter:
        report = publish(
            found,
            dataset,
            version,
            target,
            public=public,
            message=message,
            dry_run=dry_run,
            scanned_rows=scan_data,
            strict=strict,
            on_progress=lambda progress: counter.set(progress.bytes, progress.bytes_total),
        )
    _warn(report)
    if json:
        print_json(report.to_json())
    else:
        stdout().print(_told(report))
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
            return f"{what} was at {there} already, and has its tag {report.tag} now; nothing else was sent"
        case "would tag":
            return f"{what} is at {there} already; a push would only set the tag {report.tag}"
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
