"""The flows `tokenize` and `mix`: the graph of a build and nothing else; logic lives in the tasks and the library.

`work` builds units of a build of theirs that waits for others. :func:`run_flow` runs them for a command.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, Final, TypeAlias, cast, get_args

import httpx
from prefect import flow, get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas import filters
from prefect.client.schemas.objects import TERMINAL_STATES, State
from prefect.client.schemas.sorting import FlowRunSort
from prefect.events.worker import EventsWorker
from prefect.exceptions import ObjectNotFound
from prefect.logging import get_run_logger
from prefect.logging.handlers import APILogHandler
from prefect.runtime import flow_run
from prefect.settings import PREFECT_API_URL, temporary_settings
from pydantic import BaseModel, WithJsonSchema

from tokenlake import numbers
from tokenlake.base.sizes import parse_duration
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.config.stages import PackStageConfig, TokenizeStageConfig
from tokenlake.errors import ConfigError, TokenlakeError
from tokenlake.etl.engines import ENGINES, EngineName
from tokenlake.etl.events import BuildRequested, Watcher, ignore
from tokenlake.etl.pool import WorkerPool
from tokenlake.etl.runner import BuildResult
from tokenlake.etl.store_engine import StorePool, join_build, named_build, parse_share
from tokenlake.prefect.engine import LocalEngine, prepared, take_engine
from tokenlake.prefect.policy import bounded, check_job, check_paths, check_store
from tokenlake.prefect.request import (
    DEFAULT,
    DEFAULT_MIXTURE,
    known_configurations,
    requested_name,
    require_flow,
    resolve_request,
    stage_values,
)
from tokenlake.prefect.runs import (
    WorkRuns,
    call_run,
    cancellable,
    final_state,
    progress_shown,
    result_of_flow,
    run_name,
)
from tokenlake.prefect.tasks import (
    Summary,
    artifact_key,
    build_all,
    commit_version,
    export_version,
    plan_build,
    publish_table,
    submitted,
)
from tokenlake.store.address import StoreAddress
from tokenlake.store.schemes import default_store
from tokenlake.threads import available_cpus

# None works, too; the schemas without it give plain fields in the form that starts a run.

_TEXTS = {"type": "array", "items": {"type": "string"}}
_FILES = {"anyOf": [{"type": "string"}, _TEXTS]}
_SHARE = {"type": "number", "minimum": 0}


def _by_name(values: dict[str, Any]) -> Any:
    return WithJsonSchema({"type": "object", "additionalProperties": values})


Text: TypeAlias = Annotated[str | None, WithJsonSchema({"type": "string"})]
Texts: TypeAlias = Annotated[Sequence[str] | None, WithJsonSchema(_TEXTS)]
Count: TypeAlias = Annotated[int | None, WithJsonSchema({"type": "integer", "minimum": 0})]
Files: TypeAlias = Annotated[str | Sequence[str] | None, WithJsonSchema(_FILES)]
_CONFIGS = {
    "anyOf": [
        {"title": "Known", "type": "string", "enum": ["", *known_configurations()]},
        {"title": "File", "type": "string"},
        {"title": "Written out", "type": "object"},
    ]
}
Config: TypeAlias = Annotated[str | dict[str, Any] | None, WithJsonSchema(_CONFIGS)]
Splits: TypeAlias = Annotated[Mapping[str, float] | None, _by_name({**_SHARE, "maximum": 1})]


def _one_of(section: type[BaseModel], key: str) -> Any:
    """The choices of a key of a configuration as a dropdown, which may stay empty."""
    choices = get_args(section.model_fields[key].annotation)
    return WithJsonSchema({"type": "string", "enum": ["", *choices]})


Strategy: TypeAlias = Annotated[str | None, _one_of(PackStageConfig, "strategy")]
TokenizerEngine: TypeAlias = Annotated[str | None, _one_of(TokenizeStageConfig, "engine")]
Options: TypeAlias = Annotated[Mapping[str, Any] | None, WithJsonSchema({"type": "object"})]
Engine: TypeAlias = Annotated[str | None, WithJsonSchema({"type": "string", "enum": ["", *ENGINES]})]
FilesBySource: TypeAlias = Annotated[Mapping[str, str | Sequence[str]] | None, _by_name(_FILES)]
Weights: TypeAlias = Annotated[Mapping[str, float] | None, _by_name(_SHARE)]


_named = partial(requested_name, DEFAULT)
_mixture_named = partial(requested_name, DEFAULT_MIXTURE)


@flow(name="tokenize", flow_run_name=run_name(_named), persist_result=False)
def tokenize(
    config: Config = "",
    data_files: Files = "",
    tokenizer: Text = "",
    output: Text = "",
    name: Text = "",
    seq_length: Count = 0,
    strategy: Strategy = "",
    tokenizer_engine: TokenizerEngine = "",
    splits: Splits = None,
    engine: Engine = "",
    work_runs: Count = 0,
    workers: Count = 0,
    overrides: Texts = (),
) -> Summary | State[Any]:
    """Tokenize and pack raw text into a new, verified version of a dataset.

    Args:
        config: Name of a file in `deployments/` such as `llama2-2048`, path of a YAML file, or the configuration itself. Empty: `demo`.
        data_files: What to read instead of the configuration's data: a path, a glob, a folder, or a list of these. Only `demo` has some of its own.
        tokenizer: Hub id, folder or tokenizer.json. Empty: the configuration's.
        output: Store to write to. Empty: the configuration's, else `TOKENLAKE_STORE`, else `./artifacts`.
        name: Name of the dataset in the store. Empty: the configuration's, else its file's.
        seq_length: Tokens of a row. 0: what the configuration says.
        strategy: How documents are laid into rows. Empty: what the configuration says.
        tokenizer_engine: What makes ids of text, always the same ids. Empty: what the configuration says.
        splits: Part of the documents of each split, by its name; they sum to 1: `{"train": 0.98, "validation": 0.02}`. Empty: the configuration's.
        engine: Where units run, always with the same bytes: `local`, `store` (wherever `tokenlake work` runs), `ray`, `dask`. Empty: `local`, or `ray` where its section is enabled.
        work_runs: With `engine` `store`: so many runs of `work/units` are started to build the units, in that deployment's work pool. 0: whoever runs `tokenlake work` builds.
        workers: Worker processes, of each of these runs if there are any. 0: one per core, or as the engine has it.
        overrides: Single values of the configuration, such as `pack.seq_length=4096`.
    """  # noqa: E501 - a line break here is a line break in the form
    values = [*stage_values(seq_length, strategy, tokenizer_engine, splits), *(overrides or ())]
    asked = partial(resolve_request, config, data_files, tokenizer, output, name, values)
    return _run("tokenize", _named, asked, workers, engine, work_runs)


@flow(name="mix", flow_run_name=run_name(_mixture_named), persist_result=False)
def mix(
    config: Config = "",
    data_files: FilesBySource = None,
    weights: Weights = None,
    tokenizer: Text = "",
    output: Text = "",
    name: Text = "",
    seq_length: Count = 0,
    strategy: Strategy = "",
    tokenizer_engine: TokenizerEngine = "",
    splits: Splits = None,
    engine: Engine = "",
    work_runs: Count = 0,
    workers: Count = 0,
    overrides: Texts = (),
) -> Summary | State[Any]:
    """Mix several sources by weight, and pack the mixture, into a new, verified version of a dataset. Sources that are text are tokenized first, each by a run of the flow `tokenize`.

    Args:
        config: Name of a file in `deployments/` such as `pretrain-2048`, path of a YAML file, or the configuration itself. Empty: `pretrain-2048`.
        data_files: What to read instead of the configuration's data, by source: `{"code": "code/*.parquet", "web": ["a.jsonl", "b.jsonl"]}`. Needed where the configuration names none.
        weights: Share of each source, by its name; they sum to 1. Empty: the configuration's.
        tokenizer: Hub id, folder or tokenizer.json of what is text still. Empty: the configuration's.
        output: Store to write to, which holds the tokens of the sources too. Empty: the configuration's, else `TOKENLAKE_STORE`, else `./artifacts`.
        name: Name of the dataset in the store. Empty: the configuration's, else its file's.
        seq_length: Tokens of a row. 0: what the configuration says.
        strategy: How documents are laid into rows. Empty: what the configuration says.
        tokenizer_engine: What makes ids of text, always the same ids. Empty: what the configuration says.
        splits: Part of the documents of each split, by its name; they sum to 1: `{"train": 0.98, "validation": 0.02}`. Empty: the configuration's.
        engine: Where units run, always with the same bytes: `local`, `store` (wherever `tokenlake work` runs), `ray`, `dask`. Empty: `local`, or `ray` where its section is enabled.
        work_runs: With `engine` `store`: so many runs of `work/units` are started to build the units, in that deployment's work pool. 0: whoever runs `tokenlake work` builds.
        workers: Worker processes, of each of these runs if there are any. 0: one per core, or as the engine has it.
        overrides: Single values of the configuration, such as `mix.total_tokens=1000000000`.
    """  # noqa: E501 - a line break here is a line break in the form
    config = config or DEFAULT_MIXTURE
    values = [*stage_values(seq_length, strategy, tokenizer_engine, splits), *(overrides or ())]
    asked = partial(resolve_request, config, data_files, tokenizer, output, name, values, weights=weights)
    return _run("mix", _mixture_named, asked, workers, engine, work_runs)


def _work_named(parameters: Mapping[str, Any]) -> str:
    return f"{parameters.get('name')} {parameters.get('share') or ''}".strip()


@flow(name="work", flow_run_name=run_name(_work_named), persist_result=False)
def work(
    name: str,
    store: Text = "",
    storage_options: Options = None,
    share: Text = "",
    workers: Count = 0,
    wait: Text = "",
) -> dict[str, int] | State[Any]:
    """Build units of a build that another run has planned with `engine` `store`, until none is left: `tokenlake work` as a flow. Runs of `tokenize` and `mix` with `work_runs` start it.

    Args:
        name: What is being built: `books`, or `books@v3`.
        store: Store that it goes to. Empty: `TOKENLAKE_STORE`, else `./artifacts`.
        storage_options: Of the store, with secrets as `{"env": NAME}`. Empty: `TOKENLAKE_STORE_OPTIONS`.
        share: `I/N`: take every Nth unit first, from the Ith on (from 0), then any that nobody builds. Empty: any.
        workers: Worker processes. 0: one per core.
        wait: How long to wait for the plan, such as `10m`. Empty: not at all.
    """  # noqa: E501 - a line break here is a line break in the form
    try:
        where = StoreAddress(store or default_store(), dict(storage_options or {}))
        bounded(check_store, where.url, where.options)
        part, patience = parse_share(share or "0/1"), parse_duration(wait or "0")
        log = get_run_logger().info
        with WorkerPool(workers or available_cpus()) as pool:
            done = join_build(
                where,
                named_build(where, name, patience),
                pool,
                share=part,
                patience=patience,
                on_unit=lambda record, seconds: log(f"unit {record.unit:05d}: {numbers.duration(seconds)}"),
                worker=flow_run.id,
                allow=partial(bounded, check_job),
            )
        return asdict(done)
    except (KeyboardInterrupt, TokenlakeError) as error:
        return final_state(error)


def _run(
    flow: str,
    named: Callable[[dict[str, Any]], str],
    asked: Callable[..., PipelineConfig],
    workers: int | None,
    units_on: str | None,
    work_runs: int | None,
) -> Summary | State[Any]:
    """Build with the engine that a command has made ready; of a deployment's run, what its parameters ask for."""
    try:
        engine = take_engine()
        if engine is None:
            request = asked(report=get_run_logger().info)
            require_flow(flow, request)
            bounded(check_paths, request)
            # Those of the runs that are started: this one has none.
            own = None if units_on == "store" and work_runs else workers
            engine = LocalEngine(request, workers=own, engine=cast("EngineName | None", units_on or None))
        return _build(engine, named, work_runs or 0, workers or 0)
    except (KeyboardInterrupt, TokenlakeError) as error:
        return final_state(error)


def _build(
    engine: LocalEngine, named: Callable[[dict[str, Any]], str], work_runs: int = 0, workers: int = 0
) -> Summary:
    """The graph of both flows: the tokens of each source by a flow of its own, then the build itself."""
    progress = progress_shown(engine, artifact_key("progress", engine.config.name or "build"))
    with engine, cancellable(engine), progress, _helped(engine, work_runs, workers):
        parts: list[State[Any]] = []
        for part in engine.parts():
            with prepared(part):
                config = part.config.model_dump(mode="json", exclude_unset=True)
                parts.append(tokenize(config=config, workers=part.workers, return_state=True))
            result_of_flow(parts[-1])
        plan = submitted(plan_build, engine, after=parts)
        planned = plan.result()
        call_run(f"{planned['dataset']} v{planned['version']}", named)
        last = commit_version(engine, [plan, *build_all(engine, [plan])])
        if engine.config.has_exports:
            last = submitted(export_version, engine, after=[last])
        summary = last.result()
        submitted(publish_table, engine, after=[last]).result()
        return summary


def _helped(engine: LocalEngine, work_runs: int, workers: int) -> AbstractContextManager[object]:
    """Have so many runs of `work/units` build for an engine that waits for others."""
    if not work_runs or engine.is_part:
        return nullcontext()
    pool = engine.pool
    if not isinstance(pool, StorePool):
        why = "without the engine `store`, which waits for them"
        raise ConfigError(f"work_runs={work_runs} {why}; set engine=store")
    return WorkRuns(pool, work_runs, workers, get_run_logger().info)


#: Seconds that the records of a finished run may take to reach the database.
_DRAIN_SECONDS: Final = 3.0

#: Finished runs that the database of an embedded server keeps. One has at most some 260 task runs, of 20 kB each.
KEPT_RUNS: Final = 100

_FORGOTTEN_AT_ONCE: Final = 10


def run_flow(
    served: Callable[[], Mapping[str, str]] | None,
    config: str | Mapping[str, Any] | None,
    overrides: Sequence[str],
    workers: int | None,
    on_event: Watcher | None,
    units_on: EngineName | None = None,
    on_engine: Callable[[LocalEngine], None] | None = None,
) -> BuildResult:
    """Run the configuration's flow; see :func:`.server.launch`.

    Args:
        served: waits for a server of the run's own, and returns what settings access it; None: the configured one.
        on_engine: gets the engine of the run, which can be cancelled from then on.
    """
    request = resolve_request(config, overrides=overrides)
    run = tokenize if request.is_text_build else mix
    if on_event is not None:
        on_event(BuildRequested(request.observability))
    with ExitStack() as stack:
        engine = stack.enter_context(
            LocalEngine(request, workers=workers, engine=units_on, on_event=on_event or ignore)
        )
        if on_engine is not None:
            on_engine(engine)
        if served is not None:
            # For a process that had imported Prefect, and with it the settings, before.
            access: dict[Any, str] = dict(served())
            stack.enter_context(temporary_settings(access))
        stack.enter_context(prepared(engine))
        stored = dict(config) if isinstance(config, Mapping) else config
        try:
            state = run(config=stored, workers=workers, overrides=tuple(overrides), return_state=True)
        except httpx.TransportError as cause:
            why = f"the Prefect server {PREFECT_API_URL.value()} stopped answering ({cause})"
            how = "finished units are kept, and the same command resumes the run"
            raise TokenlakeError(f"{why}; {how}") from cause
        if served is not None:
            # What was built is there, whatever becomes of the records.
            with suppress(httpx.HTTPError, ObjectNotFound), get_client(sync_client=True) as client:
                _drain(state, client)
                forget_old_runs(client)
        result_of_flow(state)
        return engine.result()


def _drain(state: State[Any], client: SyncPrefectClient) -> None:
    """Give the server the run's last events and logs, and time to write them down, before it is stopped."""
    EventsWorker.drain_all(timeout=_DRAIN_SECONDS)
    APILogHandler().flush()
    run = [one for one in [state.state_details.flow_run_id] if one is not None]
    deadline = time.monotonic() + _DRAIN_SECONDS
    known = -1
    while time.monotonic() < deadline:
        children = filters.FlowRunFilter(parent_flow_run_id=filters.FlowRunFilterParentFlowRunId(any_=run))
        ids = [*run, *(child.id for child in client.read_flow_runs(flow_run_filter=children))]
        runs = client.read_task_runs(
            flow_run_filter=filters.FlowRunFilter(id=filters.FlowRunFilterId(any_=ids))
        )
        if len(runs) == known and all(one.state is not None and one.state.is_final() for one in runs):
            return
        known = len(runs)
        time.sleep(0.15)


def forget_old_runs(client: SyncPrefectClient, kept: int = KEPT_RUNS) -> None:
    """Delete our oldest finished runs beyond the newest ``kept``, a few at a time; runs of deployments stay."""
    ours = filters.FlowFilter(name=filters.FlowFilterName(any_=[tokenize.name, mix.name]))
    finished = filters.FlowRunFilter(
        state=filters.FlowRunFilterState(type=filters.FlowRunFilterStateType(any_=list(TERMINAL_STATES))),
        deployment_id=filters.FlowRunFilterDeploymentId(is_null_=True),
    )
    page: dict[str, Any] = {"sort": FlowRunSort.END_TIME_DESC, "offset": kept, "limit": _FORGOTTEN_AT_ONCE}
    old = client.read_flow_runs(flow_filter=ours, flow_run_filter=finished, **page)
    # Another flow may have the name, but not the parameters.
    for run in (run for run in old if {"config", "workers", "overrides"} <= run.parameters.keys()):
        of_run = filters.FlowRunFilter(id=filters.FlowRunFilterId(any_=[run.id]))
        for artifact in client.read_artifacts(flow_run_filter=of_run):
            client.delete_artifact(artifact.id)
        client.delete_flow_run(run.id)


def _forget_services() -> None:
    """Take Prefect's services off the list of what the interpreter waits for at its end.

    Their threads are not in a process that was forked off, as PyTorch's loaders are: the wait fails there, and the
    process ends with 1.
    """
    awaited: list[Any] = getattr(threading, "_threading_atexits", [])
    owners = [getattr(getattr(each, "func", each), "__self__", None) for each in awaited]
    prefects = [type(owner).__module__.startswith("prefect.") for owner in owners]
    awaited[:] = [each for each, theirs in zip(awaited, prefects, strict=True) if not theirs]


os.register_at_fork(after_in_child=_forget_services)
