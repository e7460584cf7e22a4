"""The flows `clean`, `verify` and `push`, which look after inputs and versions, and their tasks: for schedules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, Final, TypeAlias

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import State, TaskRun
from prefect.logging import get_run_logger
from prefect.tasks import Task
from pydantic import WithJsonSchema

from tokenlake import numbers
from tokenlake.base.secrets import provide_blocks, resolve_options
from tokenlake.base.section import referenced_blocks
from tokenlake.clean.cleaning import Cleaning, CleanResult
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.errors import ConfigError, IntegrityError, SourceError, TokenlakeError
from tokenlake.etl.engines import open_pool
from tokenlake.integrity.findings import VerifyReport
from tokenlake.integrity.verify import verify as verify_stored
from tokenlake.prefect import policy
from tokenlake.prefect.flows import Config, Count, Files, Text, Texts
from tokenlake.prefect.request import DEFAULT, requested_name, resolve_request
from tokenlake.prefect.runs import final_state, run_name
from tokenlake.prefect.tasks import (
    DAMAGED,
    PUSHED,
    artifact_key,
    called,
    emit,
    is_worth_a_retry,
    load_blocks,
    retried,
    tried_once,
)
from tokenlake.publish import PushReport, push_to_hub
from tokenlake.reports import Table, label, number, to_markdown
from tokenlake.store.address import open_store
from tokenlake.store.base import ReadStore
from tokenlake.store.catalog import Catalog
from tokenlake.store.schemes import default_store
from tokenlake.threads import available_cpus

_REASONS: Final = (label("reason"), number("rows"))

Cleaned: TypeAlias = dict[str, Any]
"""JSON-able: where the list is, and the account."""


@retried("plan-cleaning", "plan")
def plan_cleaning(config: PipelineConfig) -> Cleaning:
    """List the inputs, and see which units have signatures already."""
    cleaning = Cleaning(config)
    log = get_run_logger()
    log.info("%s, %d to read", numbers.plural(len(cleaning.units), "unit"), len(cleaning.pending))
    for line in cleaning.notes:
        log.warning("%s", line)
    return cleaning


@retried("sign-units", "signatures")
def sign_units(cleaning: Cleaning, workers: int) -> None:
    """Make the signatures of all units that have none; another try goes on."""
    if cleaning.pending:
        with open_pool(None, workers or None, cleaning.config.ray) as pool:
            cleaning.sign(pool)


@retried("write-list", "list")
def write_list(cleaning: Cleaning) -> CleanResult:
    """Find out what is left out, and write the list."""
    return cleaning.settle()


@tried_once("report")
def publish_account(name: str, result: CleanResult) -> None:
    """Show what is left out beside the run, and in the history of its artifact."""
    key = artifact_key("cleaning", name)
    create_markdown_artifact(account_page(result), key=key, description=result.output)


def account_page(result: CleanResult) -> str:
    """Return what is left out, as Markdown."""
    account = result.account
    rows = [{"reason": why, "rows": count} for why, count in sorted(account.filtered.items())]
    said = f"{account.kept:,} of {numbers.plural(account.rows_read, 'row')} kept. The list: `{result.output}`"
    return "\n".join(["# Cleaning\n", f"{said}\n", to_markdown(Table.of(_REASONS, rows))])


@flow(name="clean", flow_run_name=run_name(partial(requested_name, DEFAULT)), persist_result=False)
def clean(
    config: Config = "",
    data_files: Files = "",
    output: Text = "",
    store: Text = "",
    name: Text = "",
    workers: Count = 0,
    overrides: Texts = (),
) -> Cleaned | State[Any]:
    """List the documents that a build is to leave out (duplicates, poor text, parts of evaluation sets), as the section `clean` of a configuration says. The build takes the list by `exclude`.

    Args:
        config: Name of a file in `deployments/`, path of a YAML file, or the configuration itself. Empty: `demo`.
        data_files: What to read instead of the configuration's data: a path, a glob, a folder, or a list of these.
        output: Path of the list. Empty: the configuration's.
        store: Store that keeps the signatures. Empty: the configuration's, else `TOKENLAKE_STORE`, else `./artifacts`.
        name: Name of the dataset. Empty: the configuration's, else its file's.
        workers: Worker processes. 0: one per core.
        overrides: Single values of the configuration, such as `clean.minhash.bands=20`.
    """  # noqa: E501 - a line break here is a line break in the form
    try:
        given = [*([f"clean.output={output}"] if output else ()), *(overrides or ())]
        request = resolve_request(config, data_files, None, store, name, given, get_run_logger().info)
        policy.bounded(policy.check_cleaning, request)
        provide_blocks(load_blocks(referenced_blocks(request)))
        cleaning = plan_cleaning(request)
        sign_units(cleaning, workers or 0)
        result = write_list(cleaning)
        publish_account(request.name or "cleaning", result)
        return result.to_json()
    except (KeyboardInterrupt, TokenlakeError) as error:
        return final_state(error)


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


def may_pass(task: Task[..., Any], run: TaskRun, state: State[Any]) -> bool:
    """Whether the same push may succeed next time: the Hub or the store could not be reached."""
    error = state.result(raise_on_failure=False)
    return isinstance(error, SourceError) or is_worth_a_retry(task, run, state)


@retried("push-version", "{dataset} v{version} to {repo}", may_pass)
def push_version(
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


_NAME: Final = label("name", "version")
_SIZE: Final = number("bytes", "size", numbers.size)
_VERSIONS: Final = (_NAME, label("state"), number("files"), _SIZE, number("rows"), number("tokens"))
_PROBLEMS: Final = (_NAME, *map(label, ("path", "problem", "expected", "got")))
_SHOWN: Final = 200  # problems on a run's page; all are in its logs
_TOLD: Final = 20  # problems in an event


def committed_versions(catalog: Catalog, names: Sequence[str]) -> list[tuple[str, int]]:
    """Return (dataset, version) of what is named, or of everything that is committed.

    Args:
        names: datasets (all their versions), or one version each: ``name@v3``, ``name@prod``.

    Raises:
        NotFoundError: something that is named is not there.
    """
    found: list[tuple[str, int]] = []
    for name in names or catalog.datasets():
        if "@" in name:
            found.append(catalog.resolve(name))
        else:
            found += [(name, info.version) for info in catalog.versions(name) if info.committed]
    return list(dict.fromkeys(found))


@retried("verify-version", "{dataset} v{version}", None)
def verify_version(store: ReadStore, dataset: str, version: int, deep: bool, workers: int) -> VerifyReport:
    """Verify one version; damage is logged and reported, not raised."""
    report = verify_stored(store, dataset, version, deep=deep, workers=workers)
    log = get_run_logger()
    log.info("%s, %s read", numbers.plural(report.files, "file"), numbers.size(report.bytes))
    for problem in report.problems:
        log.error("%s: %s: expected %s, got %s", problem.path, problem.problem, problem.expected, problem.got)
    if not report.ok:
        facts, first = called(store.url, dataset, version), report.problems[:_TOLD]
        problems = [f"{problem.path}: {problem.problem}" for problem in first]
        emit(DAMAGED, facts | {"problems": len(report.problems), "first_problems": problems})
    return report


@tried_once("report")
def publish_findings(reports: Sequence[VerifyReport]) -> None:
    """Show what was found beside the run, and in the history of the artifact ``verification``."""
    damaged = sum(not report.ok for report in reports)
    told = f"{numbers.plural(len(reports), 'version')}: {damaged or 'none'} damaged"
    create_markdown_artifact(findings(reports), key="verification", description=told)


def findings(reports: Sequence[VerifyReport]) -> str:
    """Return what verification found, as Markdown."""
    versions: list[dict[str, Any]] = []
    for report in reports:
        state = "intact" if report.ok else numbers.plural(len(report.problems), "problem")
        keys = ("files", "bytes", "rows", "tokens") if report.deep else ("files", "bytes")
        counts = {key: getattr(report, key) for key in keys}
        versions.append({"name": _called(report), "state": state, **counts})
    problems = [
        {"name": _called(report), **asdict(problem)} for report in reports for problem in report.problems
    ]
    tables = [Table.of(_VERSIONS, versions)]
    if problems:
        tables.append(Table.of(_PROBLEMS, problems[:_SHOWN], "Damage"))
    return "\n".join(["# Verification\n", *map(to_markdown, tables)])


def require_undamaged(reports: Sequence[VerifyReport]) -> None:
    """Raise what a run with damage ends with.

    Raises:
        IntegrityError: names the versions and the command that repairs them.
    """
    damaged = [f"{report.dataset}@v{report.version}" for report in reports if not report.ok]
    if damaged:
        what = f"{len(damaged)} of {numbers.plural(len(reports), 'version')} damaged: {', '.join(damaged)}"
        how = f"`tokenlake repair {damaged[0]}` rebuilds what can be rebuilt"
        told = f"{what}. This run's logs and artifact list the damage; {how}."
        raise IntegrityError(told, damaged=damaged)


def _called(report: VerifyReport) -> str:
    return f"{report.dataset} v{report.version}"


Verified: TypeAlias = dict[str, Any]
"""JSON-able: how many versions and bytes were read."""


def _verified(parameters: dict[str, Any]) -> str:
    names = parameters.get("names") or ["all-versions"]
    return f"{', '.join(names[:3])}{' ...' if len(names) > 3 else ''}"


@flow(name="verify", flow_run_name=run_name(_verified), persist_result=False)
def verify(
    names: Texts = (), store: Text = "", deep: bool = True, workers: Count = 0
) -> Verified | State[Any]:
    """Verify versions of datasets: every byte against its manifest, and with `deep` every checksum, count and token. A run that finds damage fails, and says what is damaged.

    Args:
        names: Datasets, or versions such as `books@v3` or `books@prod`. Empty: everything in the store.
        store: Store to look at. Empty: `TOKENLAKE_STORE`, else `./artifacts`.
        deep: Also decode every row: checksums of pages, counts, provenance, logical hashes.
        workers: Threads. 0: one per core.
    """  # noqa: E501 - a line break here is a line break in the form
    try:
        address = store or default_store()
        policy.bounded(policy.check_store, address, {})
        opened = open_store(address)
        versions = committed_versions(Catalog(opened), names or ())
        threads = workers or available_cpus()
        # One after the other: each takes all threads.
        reports = [verify_version(opened, dataset, version, deep, threads) for dataset, version in versions]
        publish_findings(reports)
        require_undamaged(reports)
        return {"versions": len(reports), "bytes": sum(report.bytes for report in reports)}
    except (KeyboardInterrupt, TokenlakeError) as error:
        return final_state(error)


Reference: TypeAlias = Annotated[
    Mapping[str, str] | None,
    WithJsonSchema({"type": "object", "additionalProperties": {"type": "string"}}),
]


@flow(name="push", flow_run_name=run_name("{name} to {repo}".format_map), persist_result=False)
def push(
    name: str, repo: str, store: Text = "", revision: Text = "", token: Reference = None, strict: bool = True
) -> dict[str, Any] | State[Any]:
    """Upload a version to a private dataset repository of the Hugging Face Hub. One that is there already is not sent again; public repositories are for `tokenlake push --public`, which a person runs.

    Args:
        name: Dataset, or one version of it, such as `books@v3` or `books@prod`.
        repo: `org/name`; created as a private one where there is none.
        store: Store that holds it. Empty: `TOKENLAKE_STORE`, else `./artifacts`.
        revision: Branch. Empty: `main`.
        token: `{"env": NAME}` or `{"block": NAME}`, never the token. Empty: the worker's `HF_TOKEN`, else its login.
        strict: Refuse also for what looks like a secret in sampled rows.
    """  # noqa: E501 - a line break here is a line break in the form
    try:
        address = store or default_store()
        policy.bounded(policy.check_store, address, {})
        policy.bounded(policy.check_repository, repo)
        reference = check_reference(token)
        policy.bounded(policy.check_reference, reference)
        dataset, version = Catalog(open_store(address)).resolve(name)
        return push_version(address, dataset, version, repo, revision or "main", reference, strict).to_json()
    except (KeyboardInterrupt, TokenlakeError) as error:
        return final_state(error)
