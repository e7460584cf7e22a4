"""``tokenlake repair``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter

from tokenlake import numbers
from tokenlake.cli.console import AsJson, Name, Overrides, StoreUrl, Workers, emit, note, print_tables
from tokenlake.cli.progress import counting
from tokenlake.config.stores import default_store
from tokenlake.errors import IntegrityError, TokenlakeError
from tokenlake.etl.engines import EngineName
from tokenlake.integrity.findings import RepairProgress, RepairReport
from tokenlake.integrity.repair import repair as repair_version
from tokenlake.reports.table import Table, label
from tokenlake.reports.terminal import stdout

_COLUMNS = (label("version"), label("path"), label("damage"), label("how", "result"), label("note", "how"))


def repair(
    name: Name,
    /,
    *,
    config: Annotated[str | None, Parameter(metavar="FILE")] = None,
    set_: Overrides = (),
    dry_run: bool = False,
    workers: Workers = None,
    store: StoreUrl = None,
    engine: EngineName | None = None,
    json: AsJson = False,
) -> int:
    """Repair the damaged files of a version, byte for byte.

    A damaged file is copied from another version that holds it, or built again from the recorded inputs; it is compared
    with the manifest and then replaced as a whole. Other versions that share the file are repaired, too. If an input
    has changed, the file stays as it is and the input is named. If a unit comes out with the same rows in other bytes,
    as with another release of pyarrow, a new version is committed beside the damaged one.

    The exit code is 0 if no damage is left, 1 if nothing could be repaired, and 3 if some damage remains.

    Args:
        config: The configuration that built the version. Default: the one recorded by its newest run.
        dry_run: Print what would be repaired, and write nothing.
        engine: Where units are built again: local, on this machine (default); store, wherever `tokenlake work` runs;
            ray or dask, on a cluster.
    """

    def tell(progress: RepairProgress) -> None:
        if progress.doing.startswith("waiting"):
            note(progress.doing)
        counter.set(progress.bytes, progress.bytes_total)

    with counting("repairing") as counter:
        report = repair_version(
            store or default_store(),
            name,
            config=config,
            overrides=set_,
            dry_run=dry_run,
            workers=workers,
            engine=engine,
            on_progress=tell,
        )
    emit(report.to_json(), json, lambda: _print(report))
    return exit_code(report)


def exit_code(report: RepairReport) -> int:
    """Return what the command ends with."""
    if report.ok:
        return 0
    return IntegrityError.exit_code if report.repaired else TokenlakeError.exit_code


def _print(report: RepairReport) -> None:
    console = stdout()
    console.print(f"{report.dataset} v{report.version}: {_summary(report)}")
    if report.files:
        print_tables([Table.of(_COLUMNS, [asdict(one) for one in report.files])])
    left = [problem for problem in report.problems if problem.path not in {one.path for one in report.files}]
    if left and not report.dry_run:
        columns = (label("path"), label("problem"), label("expected"), label("got"))
        print_tables([Table.of(columns, [asdict(problem) for problem in left])])
    if report.intact:
        note(f"the same bytes are intact elsewhere: {', '.join(report.intact)}")
    if report.unlisted:
        note(
            f"no manifest lists {numbers.plural(len(report.unlisted), 'file')}; `tokenlake gc` removes such files"
        )
    if report.new_version is not None:
        note(
            f"v{report.new_version} holds the same rows, undamaged; v{report.version} stays damaged. Move tags and "
            "trainers that name it"
        )


def _summary(report: RepairReport) -> str:
    if not report.files and report.ok:
        return "nothing is damaged"
    if not report.files:
        return f"{numbers.plural(len(report.problems), 'problem')} that repair cannot solve"
    done = (
        f"{numbers.plural(report.repaired, 'file')} {'would be repaired' if report.dry_run else 'repaired'}"
    )
    lost = len(report.files) - report.repaired
    return f"{done}, {lost} not" if lost else done
