"""``tokenlake plan``: what a run of a configuration would do, without writing."""

from __future__ import annotations

from rich.text import Text

from tokenlake.cli.console import (
    AsJson,
    Config,
    Overrides,
    StoreUrl,
    note,
    print_json,
    with_store,
)
from tokenlake.cli.mixture_plan import plan_mixture
from tokenlake.cli.text_plan import plan_text
from tokenlake.config.load import load_config
from tokenlake.etl.after_commit import check_hooks
from tokenlake.etl.export.plan import wanted_beside
from tokenlake.etl.observability.build import RunProgress
from tokenlake.etl.reports import Table, label
from tokenlake.etl.reports.terminal import near, print_tables, stdout


def plan(
    config: Config,
    /,
    *,
    set_: Overrides = (),
    store: StoreUrl = None,
    json: AsJson = False,
) -> int:
    """Show what a run of this configuration would do, without writing anything.

    Inputs are listed and hashed (hashes are cached), and tokenizers are loaded. The
    numbers of tokens and the size of the output are estimates from a sample of each
    source.

    If the configuration mixes text, the tokens of each source are planned first. The
    mixture itself is planned once these tokens exist: how many rows of each source it
    reads, and how often.

    Exports and pushes to the Hub that would follow are listed with their targets. An
    export that a run would refuse is refused here, too.
    """
    # The store of the command line is an override, as of a run.
    pipeline = load_config(config, with_store(set_, store))
    check_hooks(pipeline)
    with RunProgress("planning") as progress:
        # A build of text is one plan; anything else may be several.
        if pipeline.is_text_build:
            build_plan = plan_text("", pipeline, progress)
        else:
            build_plan = plan_mixture(pipeline, progress)
    exports = wanted_beside(pipeline)
    if json:
        print_json(build_plan.to_json() | {"exports": exports})
        return 0

    # For people: a heading, the tables of the plan, the exports, and notes on stderr.
    build = build_plan.build
    stdout().print(Text.assemble((build.name, "bold"), f" into {near(build.store)}\n"))
    tables = build_plan.tables()
    if exports:
        columns = (
            label("option"),
            label("dataset"),
            label("form"),
            label("place", "where"),
        )
        records = [export | {"place": near(export["place"])} for export in exports]
        tables.append(Table.of(columns, records, "Exports"))
    print_tables(tables)
    for line in build_plan.notes():
        note(line)
    return 0
