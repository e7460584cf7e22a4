"""A manifest as tables: totals, tokenizers, inputs, sources, and the account with every
equation filled in.

Of a mixture the shares asked and achieved, epochs, and the order in words. And a plan
in a few words: how far it is, and what becomes of documents that are longer than
``max_length``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from tokenlake.base import numbers
from tokenlake.base.numbers import count, percent
from tokenlake.etl.reports import Table, facts, label, number
from tokenlake.runtime.store.account import LAWS, Account
from tokenlake.runtime.store.ledger import InputFileEntry
from tokenlake.runtime.store.manifest import Manifest
from tokenlake.runtime.store.mixture import FIRST_ORDER, MixedSource, MixtureRecord

if TYPE_CHECKING:
    from tokenlake.config.resolved import ResolvedTokenizer


def fill(manifest: Manifest) -> str:
    """How much of a packed dataset's slots is not padding, e.g. ``99.87%``."""
    account = manifest.account
    return numbers.percent(account.slots - account.pad, account.slots)


def shape(manifest: Manifest) -> str:
    """``2,507 x 2,048, 99.87% full`` for packed sequences, ``1,832 documents`` for
    tokens.
    """
    rows = numbers.count(manifest.totals.rows)
    if manifest.preference is not None:
        return f"{rows} for {manifest.preference[0]}, in the columns of {manifest.preference[1]}"
    if not manifest.width:
        return f"{rows} documents"
    return f"{rows} x {numbers.count(manifest.width)}, {fill(manifest)} full"


def stored(manifest: Manifest) -> str:
    """``7.10 MiB in 9 shards, 11.4 bits per token``."""
    totals = manifest.totals
    written = f"{numbers.size(totals.bytes)} in {numbers.plural(totals.files, 'shard')}"
    return (
        f"{written}, {totals.bytes * 8 / totals.tokens:.1f} bits per token"
        if totals.tokens
        else written
    )


def import_formats(manifest: Manifest) -> str:
    """Return the formats of the files that token ids were imported from; "" for a
    version of other origin.
    """
    formats: dict[str, None] = {}
    for source in manifest.config.get("sources", {}).values():
        if "tokens" in source:
            formats[source.get("type") or "other"] = None
    return ", ".join(formats)


def headline(manifest: Manifest) -> Table:
    """What a person wants to know first."""
    account = manifest.account
    # `6,317,546 (2,165 EOS) from 21.4 MiB of text`; the total is what `ls` and `splits`
    # count, too.
    tokens = count(manifest.totals.tokens)
    if special := [
        f"{count(n)} {name}"
        for name, n in (("BOS", account.bos), ("EOS", account.eos))
        if n
    ]:
        tokens += f" ({', '.join(special)})"
    # What was made from stored tokens has none: that is its parents' affair.
    if account.text_bytes:
        tokens += f" from {numbers.size(account.text_bytes)} of text"
    formats = import_formats(manifest)
    if formats:
        tokens += f", imported ({formats})"
    # Of packed rows that were passed on nobody counted documents again: the account's
    # are the rows.
    passed_on = manifest.mixture is not None and manifest.mixture.level == "sequences"
    pairs = [
        *([] if passed_on else [("documents", count(account.documents))]),
        ("tokens", tokens),
        ("sequences" if manifest.width else "rows", shape(manifest)),
        ("stored", stored(manifest)),
    ]
    return facts(pairs)


def splits_table(manifest: Manifest) -> Table:
    """Totals of each split."""
    columns = [
        label("split"),
        number("rows", "sequences" if manifest.width else "rows"),
        number("tokens"),
        number("documents"),
        number("files", "shards"),
        number("bytes", "size", numbers.size),
    ]
    records = [
        {"split": name, **asdict(totals)} for name, totals in manifest.splits.items()
    ]
    return Table.of(columns, records, "Splits")


def tokenizers_table(manifest: Manifest) -> Table:
    """The tokenizer of each source; sources that share one share a line."""
    columns = [
        label("sources", "source"),
        number("vocab_size", "vocabulary"),
        number("bos_id", "BOS", str),
        number("eos_id", "EOS", str),
        number("pad_id", "padding", str),
        label("sha256", "tokenizer.json"),
        label("name", "from"),
    ]
    lines: dict[str, dict[str, Any]] = {}
    for source, described in manifest.tokenizer.items():
        digest = str(described.get("files", {}).get("tokenizer.json", ""))
        above = lines.get(digest)
        sources = source if above is None else f"{above['sources']}, {source}"
        lines[digest] = {
            **(above or described),
            "sources": sources,
            "sha256": digest[:12],
        }
    return Table.of(columns, list(lines.values()), "Tokenizer")


def inputs_table(manifest: Manifest) -> Table:
    """Input files by source."""
    columns = (
        label("source"),
        number("files"),
        number("bytes", "size", numbers.size),
        label("example"),
    )
    # A mixture's inputs are those of its parents, by the names that the sources have
    # there.
    by_source: dict[str, list[InputFileEntry]] = {}
    if manifest.mixture is None:
        by_source = {source: [] for source in manifest.accounts}
    for entry in manifest.inputs:
        by_source.setdefault(entry.source, []).append(entry)
    rows = tuple(
        (
            source,
            len(files),
            sum(each.size for each in files),
            files[0].path if files else "",
        )
        for source, files in by_source.items()
    )
    return Table(columns, rows, "Inputs")


def lineage_table(manifest: Manifest) -> Table:
    """Hashes that identify the version, what it was made from, and what wrote it."""
    parents = [f"{parent.dataset}@v{parent.version}" for parent in manifest.parents]
    pairs = [
        ("manifest", manifest.sha256),
        ("build", manifest.fingerprint),
        ("inputs", manifest.lineage.inputs_fingerprint),
        *([("parents", ", ".join(parents))] if parents else []),
        ("produced by", versions(manifest.produced_by)),
    ]
    return facts(pairs, "Lineage")


def files_table(manifest: Manifest) -> Table:
    """Every shard."""
    columns = [
        label("path"),
        number("rows"),
        number("tokens"),
        number("documents"),
        number("bytes", "size", numbers.size),
        label("sha256"),
    ]
    records = [
        {**msgspec.to_builtins(shard), "sha256": shard.sha256[:12]}
        for shard in manifest.files
    ]
    return Table.of(columns, records, "Shards")


def versions(produced_by: Mapping[str, str]) -> str:
    """``tokenlake 0.1.0, pyarrow 26.0.1``."""
    return ", ".join(
        f"{name} {version}" for name, version in sorted(produced_by.items())
    )


CALLED: Final = {
    "content_packed": "content",
    "bos": "BOS",
    "eos": "EOS",
    "pad": "padding",
}
"""Names of some terms of the audit, as users read them."""

LAW_NAMES: Final = {"rows_read": "rows read", "slots": "places in rows"}
"""Names of some sums of the audit, as users read them. A place in a row holds one
token or padding.
"""


def equations(
    account: Account, width: int, law_names: Mapping[str, str] = LAW_NAMES
) -> list[tuple[str, str]]:
    """Return pairs (left side, right side) for each law of the audit.

    Terms that are 0 are left out: ``("rows read", "1,834 = 1,832 kept + 2 filtered
    (empty)")``.

    Args:
        account: Counts of the audit.
        width: Number of ids in a packed row, for the equation on places in rows; 0 for
            datasets without packing.
        law_names: Name of each sum; a sum without a name has its own.
    """
    pairs: list[tuple[str, str]] = []
    for law, parts in LAWS.items():
        if law == "slots" and not width:
            continue
        names = CALLED
        if law == "tokens":
            names = CALLED | {"content_packed": "written"}
        terms = [
            _term(account, part, names.get(part, part))
            for part in parts
            if account.count(part)
        ]

        sides = [count(getattr(account, law))]
        if law == "slots":
            sides.append(f"{count(account.sequences)} x {count(width)}")
        sides.append(" + ".join(terms) or f"0 {names.get(parts[0], parts[0])}")
        pairs.append((law_names.get(law, law), " = ".join(sides)))
    return pairs


def _term(account: Account, part: str, name: str) -> str:
    """Return a term of an equation with its reasons: ``3 filtered (1 empty, 2
    excluded)``.
    """
    term = f"{count(account.count(part))} {name}"
    value = getattr(account, part)
    if isinstance(value, int):
        return term
    counts_by_reason: Mapping[str, int] = value
    present = [reason for reason, records in counts_by_reason.items() if records]
    if len(present) == 1:
        return f"{term} ({present[0]})"
    return f"{term} ({_reasons(counts_by_reason)})"


def draws(manifest: Manifest) -> list[tuple[str, str]]:
    """Return the law of every source of a mixture: ``("drawn of web", "1,250 = 2 x
    500 of whole epochs + 250")``.
    """
    if manifest.mixture is None:
        return []
    pairs: list[tuple[str, str]] = []
    for name, source in manifest.mixture.sources.items():
        drawn_tokens = count(source.drawn_tokens)
        source_tokens = count(source.tokens)
        if not source.full_epochs and source.drawn_tokens <= source.tokens:
            law = f"{drawn_tokens} of {source_tokens}, not a whole epoch"
        else:
            law = f"{drawn_tokens} = {count(source.full_epochs)} x {source_tokens} of whole epochs"
            if source.partial_tokens:
                law += f" + {count(source.partial_tokens)}"
        pairs.append((f"drawn of {name}", law))
    return pairs


def account_table(
    manifest: Manifest,
    title: str | None = "Audit",
    law_names: Mapping[str, str] = LAW_NAMES,
) -> Table:
    """Return the equations as a table of two columns; for `law_names` see
    :func:`equations`.
    """
    rows = equations(manifest.account, manifest.width, law_names) + draws(manifest)
    return Table((label("quantity", ""), label("equation", "")), tuple(rows), title)


def remarks(account: Account) -> list[str]:
    """What was normalized, skipped or worth knowing; empty where there is nothing."""
    normalized = {
        reason: many for reason, many in account.normalized.items() if reason not in CUT
    }
    counts = {
        "normalized on reading": _reasons(normalized),
        "rows never read": _reasons(account.rows_skipped),
        "special-token strings inside documents": _some(account.special_tokens_in_text),
        "documents that already ended in EOS": _some(account.eos_existing),
    }
    return [
        f"{what}: {many}" for what, many in counts.items() if many
    ] + truncation_remarks(account)


def _some(number: int) -> str:
    return count(number) if number else ""


def sources_table(
    accounts: Mapping[str, Account], title: str | None = "Sources"
) -> Table:
    """A line for each source, in the order given; of sources that were tokens
    already nobody counted text.
    """
    columns = [
        label("source"),
        number("rows_read", "rows read"),
        number("filtered"),
        number("quarantined"),
        number("documents"),
        number("tokens"),
    ]
    if any(account.text_bytes for account in accounts.values()):
        columns.append(number("text_bytes", "text bytes"))
    rows = tuple(
        (name, *(account.count(column.key) for column in columns[1:]))
        for name, account in accounts.items()
    )
    return Table(tuple(columns), rows, title)


def mixed_text_table(
    record: MixtureRecord, texts: Mapping[str, Account], title: str | None = "Text"
) -> Table:
    """Return the text behind the tokens that a mixture draws of each source, at the
    rate of the whole source.

    A mixture draws tokens and reads no text: 1.5 epochs of a source of 20 MiB are about
    30 MiB. The figures are exact for whole epochs.

    Args:
        record: The mixture.
        texts: Account of each source's text; a source that is missing has no line.
        title: Title of the table.
    """
    columns = (
        label("source"),
        number("drawn_tokens", "tokens drawn"),
        number("text_bytes", "text of them, about", numbers.size),
        number("bytes_per_token", "bytes per token", lambda value: f"{value:.2f}"),
        number("tokens_per_byte", "tokens per byte", lambda value: f"{value:.3f}"),
    )
    rows: list[tuple[Any, ...]] = []
    for name, source in record.sources.items():
        account = texts.get(name)
        if account is None or not account.tokens or not account.text_bytes:
            continue
        bytes_per_token = account.text_bytes / account.tokens
        text_bytes = round(source.drawn_tokens * bytes_per_token)
        rows.append(
            (
                name,
                source.drawn_tokens,
                text_bytes,
                bytes_per_token,
                1 / bytes_per_token,
            )
        )
    return Table(columns, tuple(rows), title)


def lengths_table(accounts: Mapping[str, Account]) -> Table:
    """How long the documents of each source are, on the average."""
    columns = (
        label("source"),
        number("documents"),
        number("tokens", "tokens of a document", lambda value: f"{value:,.1f}"),
        number("bytes", "bytes of text", lambda value: f"{value:,.1f}"),
        number("ratio", "bytes of a token", lambda value: f"{value:.2f}"),
    )
    rows: list[tuple[Any, ...]] = []
    if not any(account.text_bytes for account in accounts.values()):
        # Imported ids have no text.
        for name, account in accounts.items():
            if account.documents:
                rows.append(
                    (name, account.documents, account.tokens / account.documents)
                )
        return Table(columns[:3], tuple(rows), "Lengths")
    for name, each in accounts.items():
        if each.documents:
            means = each.tokens / each.documents, each.text_bytes / each.documents
            rows.append(
                (
                    name,
                    each.documents,
                    *means,
                    each.text_bytes / each.tokens if each.tokens else None,
                )
            )
    return Table(columns, tuple(rows), "Lengths")


def _reasons(reasons: Mapping[str, int]) -> str:
    return ", ".join(
        f"{count(value)} {reason}" for reason, value in sorted(reasons.items()) if value
    )


def about_sources(manifest: Manifest) -> list[Table]:
    """The table of the sources; of a mixture what was asked and achieved, and its
    order.
    """
    if manifest.mixture is None:
        return [sources_table(manifest.accounts)]
    return [mixture_table(manifest.mixture), order_table(manifest.mixture)]


#: How the account calls documents that were cut (``normalized``), and what was done to them.
CUT: Final = {"long_documents_truncate": "truncated", "long_documents_split": "split"}
_AT: Final = {
    "simple": "at a token",
    "word": "between words",
    "sentence": "between sentences",
    "smart": "between sentences or words",
}
_UNLEARNED: Final = "those without loss are left out"
_AWAY: Final = {
    "right": "their ends are cut away",
    "left": "their beginnings are cut away",
}


def length_policy(settings: ResolvedTokenizer) -> str:
    """``truncated at 2,048``, for a table."""
    most = count(settings.max_length)
    return {
        "keep": "kept",
        "truncate": f"truncated at {most}",
        "split": f"split at {most}",
        "drop": f"left out above {most}",
    }[settings.long_documents]


def expected_lengths(
    settings: ResolvedTokenizer,
    documents: int,
    long: int,
    tokens: int,
    dropped: int,
    *,
    masked: bool = False,
) -> str:
    """Say what a build will do with long documents, and about how many tokens that
    costs.

    Args:
        documents, tokens: about how many there are, before the policy.
        long, dropped: about how many of them are long, and how many are dropped.
        masked: whether only a part of a document's tokens bears loss.
    """
    if settings.long_documents == "keep":
        return "kept whole, nothing is dropped"
    what = {
        "truncate": f"truncated {_AT[settings.truncation_strategy]}, {_AWAY[settings.truncation_side]}",
        "split": f"split into pieces, {_UNLEARNED if masked else 'nothing is dropped'}",
        "drop": "left out",
    }[settings.long_documents]
    most = count(settings.max_length)
    if not long:
        return f"no document of the sample is longer than {most} tokens; longer ones are {what}"
    lost = f", about {_share(dropped, tokens)} of tokens dropped"
    loss = "" if settings.long_documents == "split" else lost
    return f"about {_share(long, documents)} of documents are longer than {most} tokens: {what}{loss}"


def truncation_remarks(account: Account) -> list[str]:
    """Say what was done with long documents; empty where there were none, or all
    were kept.
    """
    sentences: list[str] = []
    for reason, done in CUT.items():
        if many := account.normalized.get(reason):
            cut = f"{count(many)} of {count(account.kept)}{_dropped(account, done)}"
            sentences.append(f"long documents {done}: {cut}")
    lost = {
        "too_long": "too long",
        "nothing_to_learn": "nothing to learn is left of them",
    }
    for reason, why in lost.items():
        if many := account.filtered.get(reason):
            sentences.append(
                f"documents left out, {why}: {count(many)}{_dropped(account, reason)}"
            )
    if "nothing_to_learn" in account.dropped and not account.filtered.get(
        "nothing_to_learn"
    ):
        sentences.append(
            f"pieces left out, nothing to learn in them{_dropped(account, 'nothing_to_learn')}"
        )
    return sentences


def _dropped(account: Account, reason: str) -> str:
    tokens = account.dropped.get(reason)
    if not tokens:
        return ""
    return f"; {count(tokens)} of {count(account.tokens)} tokens dropped ({percent(tokens, account.tokens)})"


def _share(part: int, whole: int) -> str:
    digits = 0 if part * 100 >= 10 * whole else 1
    return "less than 0.1%" if part * 1000 < whole else percent(part, whole, digits)


_DOING: Final = {
    "listing": "looking for files",
    "hashing": "hashing",
    "splitting": "reading footers",
    "counting": "counting records",
}


def planning_line(
    source: str, step: str, files: int, all_files: int, bytes_: int, all_bytes: int
) -> str:
    """``web: hashing, 31,204 of 100,000 files, 1.20 GiB of 20.1 GiB``; totals of 0 are
    not known yet.

    Args:
        source: its name.
        step: ``listing``, ``hashing``, ``splitting`` or ``counting``.
        files, all_files, bytes_, all_bytes: done so far, and in all.
    """
    done = numbers.plural(all_files or files, "file")
    if all_files:
        done = f"{numbers.count(files)} of {done}"
    size = numbers.size(bytes_) if bytes_ or all_bytes else ""
    if all_bytes:
        size = f"{size} of {numbers.size(all_bytes)}"
    return ", ".join(part for part in (f"{source}: {_DOING[step]}", done, size) if part)


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
    """How often the rows of a source were drawn, on average; None of a source
    without rows.
    """
    return source.drawn_rows / source.rows if source.rows else None


def asked(source: MixedSource) -> float:
    """The share that was asked of a source: of tokens where weights are of these,
    else of rows.
    """
    return source.asked if source.asked_tokens is None else source.asked_tokens


def mixture_table(record: MixtureRecord, title: str | None = "Mixture") -> Table:
    """A line for each source: the share that was asked for, what it came to, and how
    much of it was seen.
    """
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
    """Return the order of the rows in words, with everything that is needed to
    produce it again.
    """
    order = record.order
    level = record.level
    if record.level == "documents" and record.rows.sequences:
        level += " and then packed"
    pairs = [("mixed", level)]

    if order.kept:
        shortened_sources: list[str] = []
        for name, rows in order.kept.items():
            source_rows = numbers.count(record.sources[name].rows)
            shortened_sources.append(
                f"{name} to {numbers.count(rows)} of {source_rows} rows"
            )
        pairs.append(("shortened", ", ".join(shortened_sources)))

    weights = weights_in_words(
        points_of(record), order.interpolation, order.step_rows, record.level
    )
    if record.weights_by == "tokens":
        weights += ", by the mean tokens of a row of each"
    pairs.append(("weights", weights))
    pairs.append(
        (
            "end",
            f"after {numbers.count(order.rows)} {record.level}; {STOPS[order.stop]}",
        )
    )

    # The weights are exact at the ends of blocks in the first version of the order, and
    # of batches since then.
    batches = f"batches of {numbers.count(order.batch_size)}"
    blocks = f"blocks of {numbers.count(order.block_size)}"
    if order.version == FIRST_ORDER:
        blocks += " at whose ends the weights hold"
    else:
        batches += " at whose ends the weights hold"
    lanes = numbers.plural(order.lanes, "lane")
    pairs.append(("order", f"{lanes}, {batches}, {blocks}, seed {order.seed}"))
    return facts(pairs, title)


def weights_in_words(
    points: Points, interpolation: str, step_rows: int, of: str
) -> str:
    """``code 30.00%, text 70.00% of documents``; of a schedule, every point and how
    weights move between them.
    """
    if len(points) == 1:
        return f"{_weights(points[0][1])} of {of}"
    told = "; ".join(
        f"{_weights(weights)} at step {numbers.count(step)}" for step, weights in points
    )
    step = f"a step being {numbers.plural(step_rows, 'row')}"
    return f"of {of}: {told}; {_MOVES[interpolation]}, {step}"


def parent(source: MixedSource) -> str:
    """``web.tokens@v3``, and its split where that is not the usual one."""
    split = "" if source.split == "train" else f" ({source.split})"
    return f"{source.dataset}@v{source.version}{split}"


def sentence(record: MixtureRecord) -> str:
    """``code (31.20% of the tokens, 1.37 epochs) and web (68.80%, 0.71 epochs)``;
    for an introduction.
    """
    *first, last = (
        f"{name} ({share(source.achieved_tokens)} of the tokens, {epochs(source) or 0.0:.2f} epochs)"
        for name, source in record.sources.items()
    )
    return f"{', '.join(first)} and {last}" if first else last


def points_of(record: MixtureRecord) -> Points:
    """The points of the order; their weights in the order of the sources, which JSON
    does not keep.
    """
    return [
        (point.step, {name: point.weights[name] for name in record.sources})
        for point in record.order.points
    ]


def _weights(weights: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {share(weight)}" for name, weight in weights.items())
