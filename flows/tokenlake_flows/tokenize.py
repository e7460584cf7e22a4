"""Flow `tokenize`, which turns raw text into a new, verified version of a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from tokenlake.runs.build_run import BuildRun
from tokenlake.runs.request import (
    DEFAULT,
    requested_name,
    resolve_request,
    stage_values,
)
from tokenlake_flows.builds import run_build
from tokenlake_flows.names import call_run, run_name
from tokenlake_flows.parameters import (
    Config,
    Count,
    Executor,
    Files,
    Splits,
    Strategy,
    Text,
    Texts,
    TokenizerBackend,
    present_value,
)
from tokenlake_tasks.build import build_all
from tokenlake_tasks.commit import submit_commit
from tokenlake_tasks.export import export
from tokenlake_tasks.plan import plan
from tokenlake_tasks.report import report
from tokenlake_tasks.retries import submitted
from tokenlake_tasks.summary import Summary


@flow(
    name="tokenize",
    flow_run_name=run_name(partial(requested_name, DEFAULT)),
    persist_result=False,
)
def tokenize(
    config: Config = "",
    data_files: Files = "",
    tokenizer: Text = "",
    output: Text = "",
    name: Text = "",
    seq_length: Count = 0,
    strategy: Strategy = "",
    tokenizer_backend: TokenizerBackend = "",
    splits: Splits = None,
    executor: Executor = "",
    work_runs: Count = 0,
    workers: Count = 0,
    overrides: Texts = (),
    tokenizer_engine: TokenizerBackend = "",
    engine: Executor = "",
) -> Summary | State[Any]:
    """Tokenize and pack raw text into a new, verified version of a dataset.

    Args:
        config: Name of a configuration in `deployments/`, such as `llama2-2048`; path of a YAML file; or the configuration itself. Default: `demo`.
        data_files: Input files in place of the configuration's: a path, a glob, a folder, or a list of these. Required unless the configuration names its data, as `demo` does.
        tokenizer: Hub id, folder or tokenizer.json of the tokenizer. Default: that of the configuration.
        output: Path or URL of the store to write to. Default: that of the configuration, then `TOKENLAKE_STORE`, then `./artifacts`.
        name: Name of the dataset in the store. Default: that of the configuration, then the name of its file.
        seq_length: Number of tokens in a packed row. 0: the configuration's value.
        strategy: Packing strategy, which decides how documents are placed in rows. Default: that of the configuration.
        tokenizer_backend: Tokenizer implementation. All of them give the same ids. Default: that of the configuration.
        splits: Share of the documents in each split, by name, with a sum of 1: `{"train": 0.98, "validation": 0.02}`. Default: that of the configuration.
        executor: Place where the units run: `local` (this machine), `store` (all machines that run `tokenlake work`), `ray` or `dask`. The output is the same. Default: `local`, or `ray` if the configuration enables it.
        work_runs: Number of runs of `work/units` to start, with executor `store`. They build the units in the work pool of that deployment. 0: none; machines that run `tokenlake work` build the units.
        workers: Number of worker processes, in each of these runs if there are any. 0: one per core.
        overrides: Single values of the configuration, such as `pack.seq_length=4096`.
        tokenizer_engine: Former name of `tokenizer_backend`, for one release.
        engine: Former name of `executor`, for one release.
    """  # noqa: E501 - a line break here is a line break in the form
    tokenizer_backend = present_value(
        "tokenizer_engine", tokenizer_engine, "tokenizer_backend", tokenizer_backend
    )
    executor = present_value("engine", engine, "executor", executor)
    values = [
        *stage_values(seq_length, strategy, tokenizer_backend, splits),
        *(overrides or ()),
    ]
    request = partial(
        resolve_request, config, data_files, tokenizer, output, name, values
    )
    return run_build(
        "tokenize",
        build_version,
        request,
        workers=workers,
        executor=executor,
        work_runs=work_runs,
    )


def build_version(build_run: BuildRun, after: Sequence[Any] = ()) -> Summary:
    """Plan, build all units, commit, export and report.

    Steps of a unit are load, tokenize or mix, pack and save.

    Args:
        build_run: Build run.
        after: Futures and states of earlier steps, for the arrows of the graph.

    Returns:
        Summary of the version.
    """
    planned = submitted(plan, build_run, after=after)
    version = planned.result()
    call_run(f"{version['dataset']} v{version['version']}")

    # Every task waits for the futures of the tasks before it. The page of the run shows
    # these dependencies as arrows.
    units = build_all(build_run, after=[planned])
    last_future = submit_commit(build_run, after=[planned, *units])
    if build_run.config.has_exports:
        last_future = submitted(export, build_run, after=[last_future])
    summary = last_future.result()
    submitted(report, build_run, after=[last_future]).result()
    return summary
