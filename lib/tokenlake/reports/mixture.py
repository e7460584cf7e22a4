"""What a mixed version is a mixture of: shares asked and achieved, epochs, and the order in words."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from tokenlake import numbers
from tokenlake.reports.table import Table, facts, label, number
from tokenlake.store.manifest import Manifest
from tokenlake.store.mixture import FIRST_ORDER, MixedSource, MixtureRecord

Points: TypeAlias = Sequence[tuple[int, Mapping[str, float]]]
"""(step, source -> weight), steps ascending."""

_MOVES: Final = {
    "step": "each set holding until the next",
    "linear": "moving in straight lines in between",
    "cosine": "moving along half cosines in between",
}
STOPS: Final = {
    "restart": "a source that ends starts again, in another order",
    "first_exhausted": "it ends with the first source that does",
    "all_exhausted": "it ends with the last source; one that ended before is skipped",
}
"""What becomes of a source that ends, and of the mixture then."""


def share(value: float) -> str:
    """``30.00%``; a tiny share keeps two digits that say something: ``0.0012%``.

    >>> share(0.3), share(0.0001), share(0.0000123), share(1.0)
    ('30.00%', '0.01%', '0.0012%', '100.00%')
    """
    return numbers.percent(value, 1, 2 if value == 0 or value >= 0.0001 else 4)


def epochs(source: MixedSource) -> float | None:
    """How often the rows of a source were drawn, on average; None of a source without rows."""
    return source.drawn_rows / source.rows if source.rows else None


def asked(source: MixedSource) -> float:
    """The share that was asked of a source: of tokens where weights are of these, else of rows."""
    return source.asked if source.asked_tokens is None else source.asked_tokens


def mixture_table(record: MixtureRecord, title: str | None = "Mixture") -> Table:
    """A line for each source: the share that was asked for, what it came to, and how much of it was seen."""
    records = [
        {
            **source.to_json(),
            "source": name,
            "parent": parent(source),
            "asked": asked(source),
            "epochs": epochs(source),
        }
        for name, source in record.sources.items()
    ]
    # What was asked for stands beside what it is to be compared with.
    rows = number("achieved_rows", "of rows", share)
    tokens = number("achieved_tokens", "of tokens", share)
    columns = (
        label("source"),
        label("parent", "from"),
        number("asked", f"asked of {record.weights_by}", share),
        *((rows, tokens) if record.weights_by == "rows" else (tokens, rows)),
        number("epochs", "epochs", lambda value: f"{value:.2f}"),
        number("drawn_rows", "rows drawn"),
        number("drawn_tokens", "tokens drawn"),
        number("unread_rows", "never drawn"),
    )
    return Table.of(columns, records, title)


def order_table(record: MixtureRecord, title: str | None = "Order") -> Table:
    """The order of the rows in words: enough to make it again."""
    order = record.order
    packed = " and then packed" if record.level == "documents" and record.rows.sequences else ""
    weights = weights_in_words(_points(record), order.interpolation, order.step_rows, record.level)
    exact = " at whose ends the weights hold"
    held, held_late = ("", exact) if order.version == FIRST_ORDER else (exact, "")
    by = ", by the mean tokens of a row of each" if record.weights_by == "tokens" else ""
    kept = ", ".join(
        f"{name} to {numbers.count(rows)} of {numbers.count(record.sources[name].rows)} rows"
        for name, rows in order.kept.items()
    )
    pairs = [
        ("mixed", f"{record.level}{packed}"),
        *([("shortened", kept)] if kept else []),
        ("weights", f"{weights}{by}"),
        ("end", f"after {numbers.count(order.rows)} {record.level}; {STOPS[order.stop]}"),
        (
            "order",
            f"{numbers.plural(order.lanes, 'lane')}, batches of {numbers.count(order.batch_size)}{held}, "
            f"blocks of {numbers.count(order.block_size)}{held_late}, seed {order.seed}",
        ),
    ]
    return facts(pairs, title)


def weights_in_words(points: Points, interpolation: str, step_rows: int, of: str) -> str:
    """``code 30.00%, text 70.00% of documents``; of a schedule, every point and how weights move between them."""
    if len(points) == 1:
        return f"{_weights(points[0][1])} of {of}"
    told = "; ".join(f"{_weights(weights)} at step {numbers.count(step)}" for step, weights in points)
    step = f"a step being {numbers.plural(step_rows, 'row')}"
    return f"of {of}: {told}; {_MOVES[interpolation]}, {step}"


def parent(source: MixedSource) -> str:
    """``web.tokens@v3``, and its split where that is not the usual one."""
    split = "" if source.split == "train" else f" ({source.split})"
    return f"{source.dataset}@v{source.version}{split}"


def sentence(record: MixtureRecord) -> str:
    """``code (31.20% of the tokens, 1.37 epochs) and web (68.80%, 0.71 epochs)``; for an introduction."""
    *first, last = (
        f"{name} ({share(source.achieved_tokens)} of the tokens, {epochs(source) or 0.0:.2f} epochs)"
        for name, source in record.sources.items()
    )
    return f"{', '.join(first)} and {last}" if first else last


def recipe(manifest: Manifest, record: MixtureRecord) -> str:
    """A configuration, as YAML, that makes the same rows again of the same parents."""
    order, pack = record.order, manifest.config.get("build", {}).get("pack")
    lines = [f"name: {manifest.dataset}", "datasets:"]
    lines += [
        f"- {{name: {json.dumps(name)}, dataset: {source.dataset}@v{source.version}, "
        f"split: {json.dumps(source.split)}}}"
        for name, source in record.sources.items()
    ]
    lines.append("mix:")
    if order.kept:
        # In the middle of the shares that come to so many rows.
        shares = {name: (rows + 0.5) / record.sources[name].rows for name, rows in order.kept.items()}
        lines.append(f"  max_fraction: {json.dumps(shares)}")
    lines += ["  weight_schedule:"]
    lines += [
        f"  - {{step: {step}, weights: {json.dumps(dict(weights))}}}" for step, weights in _points(record)
    ]
    lines += [
        f"  weight_schedule_type: {order.interpolation}",
        *(
            f"  {key}: {getattr(order, key)}"
            for key in ("step_rows", "block_size", "seed", "lanes", "batch_size")
        ),
        *([] if order.version == FIRST_ORDER else [f"  order: {order.version}"]),
        f"  stop_strategy: {order.stop}",
        f"  total_rows: {order.rows}",
    ]
    if pack:
        seed = pack.get("shuffle_seed")
        # In an order of its own: the manifest's, once it was read, is another than when the card was first written.
        names = [name for name in _PACK if name in pack] + sorted(pack.keys() - {*_PACK, "shuffle_seed"})
        lines += [] if seed is None else [f"seed: {seed}"]
        lines += ["pack:", "  enabled: true"]
        lines += [f"  {name}: {json.dumps(pack[name])}" for name in names if pack[name] is not None]
        lines.append(f"  shuffle_packed: {json.dumps(seed is not None)}")
    return "\n".join(lines) + "\n"


_PACK: Final = (
    *("seq_length", "eos_token_id", "pad_token_id", "strategy", "window_tokens", "store_segment_ids"),
    *("num_packers", "max_segments"),
)


def _points(record: MixtureRecord) -> Points:
    """The points of the order; their weights in the order of the sources, which JSON does not keep."""
    return [
        (point.step, {name: point.weights[name] for name in record.sources}) for point in record.order.points
    ]


def _weights(weights: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {share(weight)}" for name, weight in weights.items())
