"""``tokenlake diff``: what differs between two versions."""

from __future__ import annotations

from tokenlake import numbers
from tokenlake.cli.console import AsJson, Name, StoreUrl, emit, note, print_tables
from tokenlake.config.stores import default_store
from tokenlake.reports.difference import difference_tables, headings, sentence_of
from tokenlake.reports.terminal import stdout
from tokenlake.store.diff import Difference
from tokenlake.store.diff import diff as compare


def diff(
    a: Name,
    b: str,
    /,
    *,
    files: bool = False,
    exit_code: bool = False,
    store: StoreUrl = None,
    json: AsJson = False,
) -> int:
    """Show what differs between two versions: configuration, tokenizer, inputs, shards, figures, weights.

    Only manifests are read. Shards are compared by their hashes: they have the same bytes, or the same tokens in other
    bytes. The card, the configuration file and the ledger hold names and release numbers and are not compared.

    The exit code is 0 whether the versions differ or not; with --exit-code, as in git, it is 1 if they differ.

    Args:
        b: The other version.
        files: List every shard that differs.
        exit_code: Exit with 1 if the versions differ.
    """
    found = compare(a, b, store=store or default_store())
    emit(found.to_json(), json, lambda: _print(found, files))
    return 1 if exit_code and not found.equal else 0


def _print(found: Difference, files: bool) -> None:
    console = stdout()
    console.print(sentence_of(found))
    if headings(found) == ("A", "B"):
        console.print(f"A is {found.a}, B is {found.b}")
    console.print()
    print_tables(difference_tables(found, files=files))
    unlike = sum(not pair.same for pair in found.files)
    if unlike and not files:
        note(f"\n{numbers.plural(unlike, 'shard')} not the same: --files lists them")
