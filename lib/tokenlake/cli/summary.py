"""What ``tokenlake run`` says at the end."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.text import Text

from tokenlake.cli.options import store_url
from tokenlake.cli.output import emit, near, print_tables, stdout
from tokenlake.cli.progress import RunTally
from tokenlake.etl.runner import BuildResult
from tokenlake.report import dataset, numbers
from tokenlake.report.dataset import account_table, remarks
from tokenlake.report.mixture import mixture_table
from tokenlake.report.table import Table, facts, label, number


def print_summary(result: BuildResult, tallies: Sequence[RunTally], json: bool) -> None:
    """Print a finished run on stdout, for people or as JSON.

    Args:
        tallies: of each build that it was, the result's own last.
    """
    emit(_as_json(result, tallies[-1]) | _steps_json(tallies), json, lambda: _print(result, tallies))


def _as_json(result: BuildResult, tally: RunTally) -> dict[str, Any]:
    manifest = result.manifest
    return {
        "dataset": result.dataset,
        "version": result.version,
        "path": result.path,
        "status": result.status,
        "units": {
            "built": result.units_built,
            "resumed": result.units_resumed,
            "reused": result.units_reused,
        },
        "seconds": round(result.seconds, 3),
        "input_bytes_built": tally.built,
        "totals": asdict(manifest.totals),
        "account": manifest.account.to_json(),
        "fingerprint": manifest.fingerprint,
        "notes": list(result.notes),
        **({} if manifest.mixture is None else {"mixture": mixture_table(manifest.mixture).records()}),
    }


def _steps_json(tallies: Sequence[RunTally]) -> dict[str, Any]:
    """The builds that a mixture is made of; nothing where a run is one build."""
    if len(tallies) < 2:
        return {}
    return {"steps": _steps(tallies).records()}


def _steps(tallies: Sequence[RunTally]) -> Table:
    columns = [
        label("what", "step"),
        label("dataset"),
        number("version", "version", lambda version: f"v{version}"),
        number("units"),
        number("built", "built now"),
        number("written", "tokens"),
        number("seconds", "time", numbers.duration),
    ]
    records = [
        {
            **{name: getattr(tally, name) for name in ("what", "dataset", "version", "units")},
            "built": tally.pending,
            # Of a version that was there nobody counted.
            "written": tally.written or None,
            "seconds": round(tally.seconds(), 3),
        }
        for tally in tallies
    ]
    return Table.of(columns, records, "Steps")


def _print(result: BuildResult, tallies: Sequence[RunTally]) -> None:
    manifest, tally = result.manifest, tallies[-1]
    console = stdout()
    name = (f"{result.dataset} v{result.version}", "bold")
    console.print(Text.assemble(name, f" {_outcome(result)}\n"))
    headline = dataset.headline(manifest)
    print_tables([facts([*headline.rows, ("work", _work(result, tally)), ("path", near(result.path))])])
    console.print()
    if len(tallies) > 1:
        print_tables([_steps(tallies)])
        console.print()
    if manifest.mixture is not None:
        print_tables([mixture_table(manifest.mixture)])
        console.print()
    print_tables([account_table(manifest)])
    if notes := [*remarks(manifest.account), *result.notes]:
        console.print()
        print_tables([Table((label("note", ""),), tuple((line,) for line in notes), "Notes")])
    console.print()
    console.print("Next", style="bold")
    for command in _next(result):
        console.print(Text(command), soft_wrap=True)  # a wrapped command could not be copied


def _outcome(result: BuildResult) -> str:
    if result.status == "exists":
        return "exists already with the same inputs and settings: nothing to do"
    return "committed, after resuming an earlier run" if result.status == "resumed" else "committed"


def _work(result: BuildResult, tally: RunTally) -> str:
    if not result.units_built:
        return f"none, {numbers.duration(result.seconds)}"
    others = [
        f", {numbers.plural(number, 'unit')} {how}"
        for number, how in ((result.units_resumed, "resumed"), (result.units_reused, "reused"))
        if number
    ]
    seconds = tally.seconds()
    speed = (
        f"{numbers.size(tally.built)} in {numbers.duration(seconds)}, {numbers.rate(tally.built, seconds)}"
    )
    units = f"{numbers.plural(result.units_built, 'unit')} built{''.join(others)}"
    return f"{units}: {speed}; {numbers.duration(result.seconds)} in all"


def _next(result: BuildResult) -> list[str]:
    """Commands that work as printed, from this folder."""
    root = result.path.removesuffix(f"/{result.dataset}/v{result.version}")
    usual = Path(store_url(None)).expanduser().resolve() == Path(root)
    store = "" if usual else f" --store {shlex.quote(near(root))}"
    name = result.dataset
    question = shlex.quote(f'from "{name}/documents" limit 5')
    return [
        f"tokenlake peek {name} -n 2{store}",
        f"tokenlake sql {question}{store}",
        f"tokenlake verify {name}{store}",
    ]
