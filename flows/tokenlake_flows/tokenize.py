"""The flow `tokenize`: raw text becomes a new, verified version of a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from tokenlake.runs.engine import LocalEngine
from tokenlake.runs.request import DEFAULT, requested_name, resolve_request, stage_values
from tokenlake_flows.builds import run_build
from tokenlake_flows.names import call_run, run_name
from tokenlake_flows.parameters import (
    Config,
    Count,
    Engine,
    Files,
    Splits,
    Strategy,
    Text,
    Texts,
    TokenizerEngine,
)
from tokenlake_tasks.build import build_all
from tokenlake_tasks.commit import submit_commit
from tokenlake_tasks.export import export
from tokenlake_tasks.plan import plan
from tokenlake_tasks.report import report
from tokenlake_tasks.retries import submitted
from tokenlake_tasks.summary import Summary


@flow(name="tokenize", flow_run_name=run_name(partial(requested_name, DEFAULT)), persist_result=False)
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
    request = partial(resolve_request, config, data_files, tokenizer, output, name, values)
    return run_build(
        "tokenize", build_version, request, workers=workers, executor=engine, work_runs=work_runs
    )


def build_version(engine: LocalEngine, after: Sequence[Any] = ()) -> Summary:
    """Plan, build all units (load, tokenize or mix, pack, save), commit, export, report.

    Args:
        after: What must be done before, for the arrows of the graph.
    """
    planned = submitted(plan, engine, after=after)
    version = planned.result()
    call_run(f"{version['dataset']} v{version['version']}")

    units = build_all(engine, after=[planned])
    last = submit_commit(engine, after=[planned, *units])
    if engine.config.has_exports:
        last = submitted(export, engine, after=[last])
    summary = last.result()
    submitted(report, engine, after=[last]).result()
    return summary
