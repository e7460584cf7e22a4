"""The parts of a report that a manifest says: headline, account, sources, mixture, lineage."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from tokenlake import numbers
from tokenlake.markup import Html, Part, tag, together
from tokenlake.mixing.schedule import WeightScheduler
from tokenlake.reports import dataset
from tokenlake.reports.figures import areas, coloured, flow, legend, stack
from tokenlake.reports.html import folded
from tokenlake.reports.mixture import mixture_table, order_table, share
from tokenlake.reports.table import Table, label, number, to_html
from tokenlake.store.account import Account
from tokenlake.store.manifest import Manifest
from tokenlake.store.mixture import MixtureRecord

_PLACES: Final = 64  # of a schedule that are drawn

Sections = list[tuple[str, Html]]


def tiles(manifest: Manifest) -> Html:
    """What a person wants to know first."""
    facts = [*dataset.headline(manifest).rows, ("build", manifest.fingerprint[:12])]
    return tag(
        "div",
        *(tag("div", tag("b", value), tag("span", name, class_="dim")) for name, value in facts),
        class_="tiles",
    )


def manifest_sections(manifest: Manifest, texts: Mapping[str, Account]) -> Sections:
    """Return account, sources and mixture.

    Args:
        texts: the account of each source's text; of a mixture that of its parents, as far as they are there.
    """
    found = [("Account", _account(manifest)), ("Sources", _sources(manifest, texts))]
    if manifest.mixture is not None:
        found.append(("Mixture", _mixture(manifest.mixture)))
    return found


def _account(manifest: Manifest) -> Html:
    remarks = [tag("p", remark) for remark in dataset.remarks(manifest.account)]
    return together([flow(manifest.account), to_html(dataset.account_table(manifest, None)), *remarks])


def _sources(manifest: Manifest, texts: Mapping[str, Account]) -> Html:
    # In the order of the mixture, so that a source has one colour on the whole page.
    names = manifest.accounts if manifest.mixture is None else manifest.mixture.sources
    sizes = {name: float(manifest.accounts[name].tokens) for name in names if name in manifest.accounts}
    pieces = coloured(sizes)
    drawn: list[Part] = [stack(pieces), legend(pieces, sum(sizes.values()))] if len(pieces) > 1 else []
    tables = [
        dataset.sources_table(manifest.accounts, None),
        density_table(texts),
        dataset.splits_table(manifest),
    ]
    return together([*drawn, *(to_html(table) for table in tables if table.rows)])


def density_table(texts: Mapping[str, Account]) -> Table:
    """Tokens per byte of text, by source; a line for each whose text is known."""
    columns = (
        label("source"),
        number("tokens"),
        number("text_bytes", "text", numbers.size),
        number("tokens_per_byte", "tokens per byte", lambda value: f"{value:.3f}"),
        number("bytes_per_token", "bytes per token", lambda value: f"{value:.2f}"),
        number("mean", "tokens per document", lambda value: f"{value:,.0f}"),
    )
    records: list[dict[str, Any]] = [
        {
            "source": name,
            "tokens": account.tokens,
            "text_bytes": account.text_bytes,
            "tokens_per_byte": account.tokens / account.text_bytes,
            "bytes_per_token": account.text_bytes / account.tokens,
            "mean": account.tokens / account.documents if account.documents else None,
        }
        for name, account in texts.items()
        if account.text_bytes and account.tokens
    ]
    return Table.of(columns, records, "Tokens per byte")


def _mixture(record: MixtureRecord) -> Html:
    tables = [to_html(table) for table in (mixture_table(record, None), order_table(record))]
    return together([_shares(record), *tables, _weights(record)])


def _shares(record: MixtureRecord) -> Html:
    """What was asked, and what it came to, as bars below each other."""
    sources = record.sources
    asked = {n: s.asked if s.asked_tokens is None else s.asked_tokens for n, s in sources.items()}
    found = {
        f"asked of {record.weights_by}": asked,
        "of rows": {name: source.achieved_rows for name, source in sources.items()},
        "of tokens": {name: source.achieved_tokens for name, source in sources.items()},
    }
    parts: list[Part] = []
    for title, shares in found.items():
        pieces = coloured(shares, {name: share(value) for name, value in shares.items()})
        parts += [tag("p", title, class_="dim"), stack(pieces), legend(pieces)]
    return together(parts)


def _weights(record: MixtureRecord) -> Html:
    order, names = record.order, list(record.sources)
    points = [
        {"step": each.step, "weights": {name: each.weights[name] for name in names}} for each in order.points
    ]
    scheduler = WeightScheduler(points, order.interpolation)
    last = max(order.points[-1].step, -(-order.rows // order.step_rows))
    if not scheduler.changes:
        return tag("p", "The weights are the same at every step.")
    steps = sorted(
        {last * place // _PLACES for place in range(_PLACES + 1)} | {each.step for each in order.points}
    )
    drawn = areas([(step, scheduler.get_weights(step)) for step in steps], "step")
    return together([tag("h3", "Weights over steps"), drawn])


def lineage(manifest: Manifest, ancestors: Table) -> Html:
    """What it was made from, by what, and how it was asked for.

    Args:
        ancestors: the versions that it was made from, and those that these were made from.
    """
    config = json.dumps(manifest.config, indent=2, ensure_ascii=False, sort_keys=True)
    tables = [dataset.lineage_table(manifest), *([ancestors] if ancestors.rows else [])]
    tables += [dataset.tokenizers_table(manifest), dataset.inputs_table(manifest)]
    return together([*map(to_html, tables), folded("Configuration", tag("pre", config))])
