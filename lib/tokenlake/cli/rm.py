"""``tokenlake rm``: a version that nobody needs."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from tokenlake.cli.options import AsJson, StoreUrl, store_url
from tokenlake.cli.output import note, print_json, stdout
from tokenlake.report import numbers
from tokenlake.store.remove import remove_version


def rm(
    name: Annotated[str, Parameter(help="A version by its number: NAME@v3.")],
    /,
    *,
    dry_run: Annotated[
        bool, Parameter(negative="", show_default=False, help="Remove nothing; list what would be removed.")
    ] = False,
    store: StoreUrl = None,
    json: AsJson = False,
) -> int:
    """Remove a committed version, whose number is never used again.

    It is refused while a tag names the version or another one is made from it (a mixture, or rows packed again).
    Versions that only reuse its units keep them. Do not remove what a running build mixes: that build fails.
    """
    found = remove_version(name, store=store_url(store), dry_run=dry_run)
    if json:
        print_json(found.to_json())
    else:
        if dry_run:
            stdout().print("\n".join(each.name for each in found.removed), markup=False, highlight=False)
        what = f"{numbers.plural(len(found.removed), 'file')}, {numbers.size(found.bytes)}"
        verb = "would be removed" if dry_run else "removed"
        stdout().print(f"{found.dataset}@v{found.version}: {what} {verb}", markup=False)
    for each in found.kept:
        note(f"kept {each.name}: {each.reason}")
    return 1 if found.kept else 0
