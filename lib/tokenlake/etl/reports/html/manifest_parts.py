"""The sections of a report that come from a manifest alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from tokenlake.base import numbers
from tokenlake.base.markup import Html, Part, tag, together
from tokenlake.etl.reports import Table, dataset, label, number, to_html
from tokenlake.etl.reports.dataset import (
    asked,
    mixed_text_table,
    mixture_table,
    order_table,
    share,
)
from tokenlake.etl.reports.html.account_flow import flow
from tokenlake.etl.reports.html.document import folded
from tokenlake.etl.reports.html.figures import areas, coloured, legend, stack
from tokenlake.runtime.store.account import Account
from tokenlake.runtime.store.draws import schedule_of
from tokenlake.runtime.store.manifest import Manifest
from tokenlake.runtime.store.mixture import MixtureRecord

Sections = list[tuple[str, Html]]
"""Pairs (title, content) in the order of the page."""

_SCHEDULE_INTERVALS: Final = 64  # of a schedule that are drawn: finer than its curves


def tiles(manifest: Manifest, loss: str = "") -> Html:
    """Return the main figures of a version, large and side by side.

    Args:
        manifest: Manifest of the version.
        loss: Share of the tokens that counts toward the loss, in words; empty where no
            loss mask is stored.
    """
    facts: list[tuple[Any, ...]] = [*dataset.headline(manifest).rows]
    if loss:
        facts.append(("loss", loss))
    facts.append(("build", manifest.fingerprint[:12]))
    # A tile shows the figure above its name.
    boxes: list[Html] = []
    for fact_name, fact_value in facts:
        boxes.append(
            tag("div", tag("b", fact_value), tag("span", fact_name, class_="dim"))
        )
    return tag("div", *boxes, class_="tiles")


def manifest_sections(manifest: Manifest, texts: Mapping[str, Account]) -> Sections:
    """Return the sections about the account, the sources and the mixture.

    Args:
        manifest: Manifest of the version.
        texts: Account of each source's text; for a mixture the accounts of its parents
            that are in the store.
    """
    account_parts = [
        flow(manifest.account),
        to_html(dataset.account_table(manifest, None)),
    ]
    for remark in dataset.remarks(manifest.account):
        account_parts.append(tag("p", remark))
    sections = [
        ("Audit", together(account_parts)),
        ("Sources", _sources(manifest, texts)),
    ]
    record = manifest.mixture
    if record is not None:
        tables = [to_html(mixture_table(record, None))]
        text_table = mixed_text_table(record, texts)
        if text_table.rows:
            tables.append(to_html(text_table))
        tables.append(to_html(order_table(record)))
        sections.append(
            ("Mixture", together([*_shares(record), *tables, _weights(record)]))
        )
    return sections


def _sources(manifest: Manifest, texts: Mapping[str, Account]) -> Html:
    """Return the tokens of each source as a bar, and tables of sources and splits."""
    # The order of the mixture gives each source one colour on the whole page.
    source_names = list(manifest.accounts)
    if manifest.mixture is not None:
        source_names = list(manifest.mixture.sources)
    tokens_by_source: dict[str, float] = {}
    for source_name in source_names:
        if source_name in manifest.accounts:
            tokens_by_source[source_name] = float(manifest.accounts[source_name].tokens)

    # One source needs no bar of shares.
    parts: list[Part] = []
    if len(tokens_by_source) > 1:
        pieces = coloured(tokens_by_source)
        parts += [stack(pieces), legend(pieces, sum(tokens_by_source.values()))]
    # A table without rows is left out: imported ids have no density.
    tables = [
        dataset.sources_table(manifest.accounts, None),
        density_table(texts),
        dataset.splits_table(manifest, with_fill=True),
    ]
    for table in tables:
        if table.rows:
            parts.append(to_html(table))
    return together(parts)


def density_table(texts: Mapping[str, Account]) -> Table:
    """Return tokens per byte of text, with a row for each source with known text."""
    columns = (
        label("source"),
        number("tokens"),
        number("text_bytes", "text", numbers.size),
        number("tokens_per_byte", "tokens per byte", lambda value: f"{value:.3f}"),
        number("bytes_per_token", "bytes per token", lambda value: f"{value:.2f}"),
        number("mean", "tokens per document", lambda value: f"{value:,.0f}"),
    )
    rows: list[tuple[Any, ...]] = []
    for source_name, account in texts.items():
        # Without both counts there is no ratio.
        if not account.text_bytes or not account.tokens:
            continue
        tokens_per_document = None
        if account.documents:
            tokens_per_document = account.tokens / account.documents
        rows.append(
            (
                source_name,
                account.tokens,
                account.text_bytes,
                account.tokens / account.text_bytes,
                account.text_bytes / account.tokens,
                tokens_per_document,
            )
        )
    return Table(columns, tuple(rows), "Tokens per byte")


def _shares(record: MixtureRecord) -> list[Part]:
    """Return the configured and achieved shares of the sources, as bars."""
    asked_shares: dict[str, float] = {}
    row_shares: dict[str, float] = {}
    token_shares: dict[str, float] = {}
    for source_name, source in record.sources.items():
        asked_shares[source_name] = asked(source)
        row_shares[source_name] = source.achieved_rows
        token_shares[source_name] = source.achieved_tokens
    shares_by_title = {
        f"asked of {record.weights_by}": asked_shares,
        "of rows": row_shares,
        "of tokens": token_shares,
    }

    # The bars have one width and one order of colours, so that they can be compared.
    parts: list[Part] = []
    for title, shares in shares_by_title.items():
        percentages = {name: share(value) for name, value in shares.items()}
        pieces = coloured(shares, percentages)
        parts += [tag("p", title, class_="dim"), stack(pieces), legend(pieces)]
    return parts


def _weights(record: MixtureRecord) -> Html:
    """Draw the weights of the sources over the steps of the schedule."""
    # The schedule goes on after its last point, until the rows of the pass end.
    order = record.order
    scheduler = schedule_of(record.spec)
    if not scheduler.changes:
        return tag("p", "The weights are the same at every step.")
    steps_in_pass = -(-order.rows // order.step_rows)
    last_step = max(order.points[-1].step, steps_in_pass)

    # Evenly spaced steps, and every point of the schedule itself.
    steps: set[int] = set()
    for interval in range(_SCHEDULE_INTERVALS + 1):
        steps.add(last_step * interval // _SCHEDULE_INTERVALS)
    steps.update(point.step for point in order.points)
    points: list[tuple[float, Mapping[str, float]]] = []
    for step in sorted(steps):
        points.append((step, scheduler.get_weights(step)))
    drawn_weights = areas(points, "step")
    return together([tag("h3", "Weights over steps"), drawn_weights])


def lineage(manifest: Manifest, ancestors: Table) -> Html:
    """Return the origin of a version: parents, software, tokenizers and inputs.

    Args:
        manifest: Manifest of the version.
        ancestors: Table of all versions that the version was made from, directly or
            through others.
    """
    # Sorted keys: the same configuration is the same text on every page.
    config = json.dumps(manifest.config, indent=2, ensure_ascii=False, sort_keys=True)
    tables = [dataset.lineage_table(manifest)]
    if ancestors.rows:
        tables.append(ancestors)
    tables += [dataset.tokenizers_table(manifest), dataset.inputs_table(manifest)]
    return together(
        [*map(to_html, tables), folded("Configuration", tag("pre", config))]
    )
