"""``tokenlake plan``."""

from __future__ import annotations

from rich.text import Text

from tokenlake.build.planning.estimate import estimate
from tokenlake.build.planning.plan import make_plan
from tokenlake.cli.mixtureplan import plan_steps
from tokenlake.cli.options import AsJson, Config, Overrides, StoreUrl, with_store
from tokenlake.cli.output import near, note, print_json, print_tables, stdout
from tokenlake.cli.progress import RunProgress
from tokenlake.cli.textplan import plan_as_json, plan_tables
from tokenlake.config import load_config
from tokenlake.config.resolve import resolve
from tokenlake.config.steps import is_text_build


def plan(config: Config, /, *, set_: Overrides = (), store: StoreUrl = None, json: AsJson = False) -> int:
    """Show what a run of this configuration would do, without writing anything.

    Inputs are listed and hashed (hashes are cached) and tokenizers loaded. Tokens and output are estimates
    from a sample of each source.

    Where a configuration mixes, the tokens of sources that are text are planned first. The mixture itself is planned
    once these are there: how many rows of each source, how often each is seen.
    """
    whole = load_config(config, with_store(set_, store))
    if not is_text_build(whole):
        return plan_steps(whole, json)
    build = resolve(whole)
    with RunProgress("planning") as progress:
        made = make_plan(build, on_event=progress)
        progress.say_now("estimating from a sample")
        expected = estimate(made)
    if json:
        print_json(plan_as_json(made, expected))
        return 0
    stdout().print(Text.assemble((made.build.name, "bold"), f" into {near(made.build.store)}\n"))
    print_tables(plan_tables(made, expected))
    for line in made.notes:
        note(f"note: {line}")
    return 0
