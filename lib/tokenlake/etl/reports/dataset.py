"""A manifest as tables: totals, tokenizers, inputs, sources, and the audit.

For a mixture: the configured and the achieved shares, the epochs, and the order in
words. For a plan: its progress, and the treatment of documents that are longer than
``max_length``.

The figures come from the manifest alone, so that equal manifests give equal tables. The
dataset card depends on it: ``repair`` writes the card again, byte for byte.
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
    """Return the share of a packed dataset's places that is not padding: ``99.87%``."""
    account = manifest.account
    return numbers.percent(account.slots - account.pad, account.slots)


def shape(manifest: Manifest) -> str:
    """Return the rows of a version in words.

    ``2,507 x 2,048, 99.87% full`` for packed sequences, ``1,832 documents`` for tokens.
    """
    rows = numbers.count(manifest.totals.rows)
    if manifest.preference is not None:
        method, trainer = manifest.preference
        return f"{rows} for {method}, in the columns of {trainer}"
    # A width of 0 means that each row is a document of its own length.
    if not manifest.width:
        return f"{rows} documents"
    return f"{rows} x {numbers.count(manifest.width)}, {fill(manifest)} full"


def stored(manifest: Manifest) -> str:
    """Return the stored size: ``7.10 MiB in 9 shards, 11.4 bits per token``."""
    totals = manifest.totals
    size_in_shards = (
        f"{numbers.size(totals.bytes)} in {numbers.plural(totals.files, 'shard')}"
    )
    if not totals.tokens:
        return size_in_shards
    bits_per_token = totals.bytes * 8 / totals.tokens
    return f"{size_in_shards}, {bits_per_token:.1f} bits per token"


def import_formats(manifest: Manifest) -> str:
    """Return the formats of the files that token ids were imported from.

    The text is empty for a version of other origin.
    """
    # A dictionary names each format once, in the order of the sources.
    formats: dict[str, None] = {}
    for source in manifest.config.get("sources", {}).values():
        if "tokens" in source:
            formats[source.get("type") or "other"] = None
    return ", ".join(formats)


def headline(manifest: Manifest) -> Table:
    """Return the main figures of a version."""
    account = manifest.account
    # `6,317,546 (2,165 EOS) from 21.4 MiB of text`; the total is the figure that `ls`
    # and `splits` show, too.
    tokens = count(manifest.totals.tokens)
    special_counts: list[str] = []
    if account.bos:
        special_counts.append(f"{count(account.bos)} BOS")
    if account.eos:
        special_counts.append(f"{count(account.eos)} EOS")
    if special_counts:
        tokens += f" ({', '.join(special_counts)})"
    # A version that was made from stored tokens has no text of its own: its parents'
    # manifests have the figure.
    if account.text_bytes:
        tokens += f" from {numbers.size(account.text_bytes)} of text"
    formats = import_formats(manifest)
    if formats:
        tokens += f", imported ({formats})"

    # A mixture of sequences passes packed rows on without counting the documents in
    # them: its audit counts rows as documents, which would mislead here.
    has_document_count = True
    if manifest.mixture is not None and manifest.mixture.level == "sequences":
        has_document_count = False
    pairs: list[tuple[str, str]] = []
    if has_document_count:
        pairs.append(("documents", count(account.documents)))
    pairs.append(("tokens", tokens))
    pairs.append((_row_noun(manifest), shape(manifest)))
    pairs.append(("stored", stored(manifest)))
    return facts(pairs)


def _row_noun(manifest: Manifest) -> str:
    """Return the word for the rows of a version: only packed rows are sequences."""
    if manifest.width:
        return "sequences"
    return "rows"


def splits_table(manifest: Manifest, *, with_fill: bool = False) -> Table:
    """Return the totals of each split.

    Args:
        manifest: Manifest of the version.
        with_fill: True to add the fill of packed rows. Default: False, because the
            dataset card of a version must keep its bytes.
    """
    columns = [
        label("split"),
        number("rows", _row_noun(manifest)),
        number("tokens"),
        number("documents"),
        number("files", "shards"),
        number("bytes", "size", numbers.size),
    ]
    if with_fill and manifest.width:
        fill_column = number("fill", "full", lambda fill: numbers.percent(fill, 1.0))
        columns.insert(2, fill_column)
    records: list[dict[str, Any]] = []
    for split_name, figures in split_figures(manifest).items():
        records.append({"split": split_name, **figures})
    return Table.of(columns, records, "Splits")


def split_figures(manifest: Manifest) -> dict[str, dict[str, Any]]:
    """Return split -> its totals, and the fill of its packed rows.

    ``fill`` is the share of the places in rows that is not padding, from 0 to 1. It is
    None for a split without rows, and where rows are not packed.
    """
    figures: dict[str, dict[str, Any]] = {}
    for split_name, totals in manifest.splits.items():
        places = totals.rows * manifest.width
        fill_of_split: float | None = None
        if places:
            fill_of_split = totals.tokens / places
        figures[split_name] = {**asdict(totals), "fill": fill_of_split}
    return figures


def tokenizers_table(manifest: Manifest) -> Table:
    """Return the tokenizer of each source; sources that share one share a row."""
    columns = [
        # The keys are those of the manifest's description of a tokenizer.
        label("sources", "source"),
        number("vocab_size", "vocabulary"),
        number("bos_id", "BOS", str),
        number("eos_id", "EOS", str),
        number("pad_id", "padding", str),
        label("sha256", "tokenizer.json"),
        label("name", "from"),
    ]
    # Two sources have the same tokenizer if their `tokenizer.json` has the same hash,
    # wherever each one was loaded from.
    record_by_digest: dict[str, dict[str, Any]] = {}
    for source, description in manifest.tokenizer.items():
        digest = str(description.get("files", {}).get("tokenizer.json", ""))
        record = record_by_digest.get(digest)
        if record is None:
            record_by_digest[digest] = {
                **description,
                "sources": source,
                "sha256": digest[:12],
            }
        else:
            record["sources"] += f", {source}"
    return Table.of(columns, list(record_by_digest.values()), "Tokenizer")


def inputs_table(manifest: Manifest) -> Table:
    """Return the number, size and an example of the input files of each source."""
    columns = (
        label("source"),
        number("files"),
        number("bytes", "size", numbers.size),
        label("example"),
    )
    # The inputs of a mixture are those of its parents, under the names that the sources
    # have there. Every other version shows all its sources, even those without files.
    files_by_source: dict[str, list[InputFileEntry]] = {}
    if manifest.mixture is None:
        for source in manifest.accounts:
            files_by_source[source] = []
    for input_file in manifest.inputs:
        files_by_source.setdefault(input_file.source, []).append(input_file)

    rows: list[tuple[Any, ...]] = []
    for source, input_files in files_by_source.items():
        total_bytes = 0
        for input_file in input_files:
            total_bytes += input_file.size
        example = ""
        if input_files:
            example = input_files[0].path
        rows.append((source, len(input_files), total_bytes, example))
    return Table(columns, tuple(rows), "Inputs")


def lineage_table(manifest: Manifest) -> Table:
    """Return the hashes that identify a version, its parents and its software."""
    pairs = [
        ("manifest", manifest.sha256),
        ("build", manifest.fingerprint),
        ("inputs", manifest.lineage.inputs_fingerprint),
    ]
    if manifest.parents:
        parents = [f"{parent.dataset}@v{parent.version}" for parent in manifest.parents]
        pairs.append(("parents", ", ".join(parents)))
    pairs.append(("produced by", versions(manifest.produced_by)))
    return facts(pairs, "Lineage")


def files_table(manifest: Manifest) -> Table:
    """Return all shards with their counts, sizes and hashes."""
    columns = [
        label("path"),
        number("rows"),
        number("tokens"),
        number("documents"),
        number("bytes", "size", numbers.size),
        label("sha256"),
    ]
    records: list[dict[str, Any]] = []
    for shard in manifest.files:
        # Twelve digits tell the files of a version apart; `--json` has the whole hash.
        records.append({**msgspec.to_builtins(shard), "sha256": shard.sha256[:12]})
    return Table.of(columns, records, "Shards")


def versions(produced_by: Mapping[str, str]) -> str:
    """Return software with its versions: ``tokenlake 0.1.0, pyarrow 26.0.1``."""
    packages = sorted(produced_by.items())
    return ", ".join(f"{package} {version}" for package, version in packages)


CALLED: Final = {
    "content_packed": "content",
    "bos": "BOS",
    "eos": "EOS",
    "pad": "padding",
}
"""Names of some terms of the audit, as users read them."""

DOCUMENT_TERMS: Final = {
    "kept": "one per kept row",
    "expanded": "further from the same rows",
}
"""Names of the terms of the documents, where a row has several documents. A packed row
that is imported has as many as it was packed of.
"""

LAW_NAMES: Final = {"rows_read": "rows read", "slots": "places in rows"}
"""Names of some sums of the audit, as users read them. A place in a row holds one
token or padding.
"""


def equations(
    account: Account,
    width: int,
    law_names: Mapping[str, str] = LAW_NAMES,
    document_terms: Mapping[str, str] = DOCUMENT_TERMS,
) -> list[tuple[str, str]]:
    """Return pairs (left side, right side) for each law of the audit.

    Terms that are 0 are left out: ``("rows read", "1,834 = 1,832 kept + 2 filtered
    (empty)")``.

    Args:
        account: Counts of the audit.
        width: Number of ids in a packed row, for the equation on places in rows; 0 for
            datasets without packing.
        law_names: Name of each sum; a sum without a name has its own.
        document_terms: Name of each term of the documents, where a row has several.
    """
    pairs: list[tuple[str, str]] = []
    for law, parts in LAWS.items():
        # Rows of single documents have no places that could be padding.
        if law == "slots" and not width:
            continue
        names = CALLED
        if law == "tokens":
            names = CALLED | {"content_packed": "written"}
        elif law == "documents" and account.expanded:
            names = document_terms
        # Terms that are 0 say nothing: most builds quarantine and filter nothing.
        terms: list[str] = []
        for part in parts:
            if account.count(part):
                terms.append(_term(account, part, names.get(part, part)))

        # The left side is the sum that was counted on its own; the places also show the
        # product that they must equal.
        sides = [count(getattr(account, law))]
        if law == "slots":
            sides.append(f"{count(account.sequences)} x {count(width)}")
        sides.append(" + ".join(terms) or f"0 {names.get(parts[0], parts[0])}")
        pairs.append((law_names.get(law, law), " = ".join(sides)))
    return pairs


def _term(account: Account, part: str, name: str) -> str:
    """Return a term with its reasons: ``3 filtered (1 empty, 2 excluded)``."""
    term = f"{count(account.count(part))} {name}"
    part_counts = getattr(account, part)
    if isinstance(part_counts, int):
        return term
    counts_by_reason: Mapping[str, int] = part_counts
    present = [reason for reason, records in counts_by_reason.items() if records]
    # A single reason has the count of the term itself, which is not repeated.
    if len(present) == 1:
        return f"{term} ({present[0]})"
    return f"{term} ({_reasons(counts_by_reason)})"


def draws(manifest: Manifest) -> list[tuple[str, str]]:
    """Return the equation of every source of a mixture.

    An example: ``("drawn of web", "1,250 = 2 x 500 of whole epochs + 250")``.
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
    document_terms: Mapping[str, str] = DOCUMENT_TERMS,
) -> Table:
    """Return the equations of the audit as a table of two columns.

    Args:
        manifest: Manifest of the version.
        title: Title of the table.
        law_names: Name of each sum, as for :func:`equations`.
        document_terms: Name of each term of the documents, likewise.
    """
    rows = equations(manifest.account, manifest.width, law_names, document_terms)
    rows += draws(manifest)
    return Table((label("quantity", ""), label("equation", "")), tuple(rows), title)


def remarks(account: Account) -> list[str]:
    """Return sentences about normalized and skipped records; none if there are none."""
    # Cut documents have sentences of their own, which also say how many tokens it cost.
    normalized = dict(account.normalized)
    for reason in CUT:
        normalized.pop(reason, None)
    texts = {
        "normalized on reading": _reasons(normalized),
        "rows never read": _reasons(account.rows_skipped),
        "special-token strings inside documents": _count_or_empty(
            account.special_tokens_in_text
        ),
        "documents that already ended in EOS": _count_or_empty(account.eos_existing),
    }
    sentences = [f"{subject}: {text}" for subject, text in texts.items() if text]
    return sentences + truncation_remarks(account)


def _count_or_empty(number: int) -> str:
    """Return a count with separators; an empty text for 0."""
    if number == 0:
        return ""
    return count(number)


def sources_table(
    accounts: Mapping[str, Account], title: str | None = "Sources"
) -> Table:
    """Return a row for each source, in the order of the accounts.

    Sources that were tokens already have no count of text; the column is left out if
    that is true of all.
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
    rows: list[tuple[Any, ...]] = []
    for source_name, account in accounts.items():
        counts = [account.count(column.key) for column in columns[1:]]
        rows.append((source_name, *counts))
    return Table(tuple(columns), tuple(rows), title)


def mixed_text_table(
    record: MixtureRecord, texts: Mapping[str, Account], title: str | None = "Text"
) -> Table:
    """Return the amount of text behind the tokens that a mixture draws of each source.

    A mixture draws tokens and reads no text. Its tokens are converted at the rate of
    the whole source: 1.5 epochs of a source of 20 MiB are about 30 MiB. The figures are
    exact for whole epochs.

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
    for source_name, source in record.sources.items():
        account = texts.get(source_name)
        # Without both counts there is no rate: imported ids have no text.
        if account is None or not account.tokens or not account.text_bytes:
            continue
        bytes_per_token = account.text_bytes / account.tokens
        tokens_per_byte = 1 / bytes_per_token
        text_bytes = round(source.drawn_tokens * bytes_per_token)
        rows.append(
            (
                source_name,
                source.drawn_tokens,
                text_bytes,
                bytes_per_token,
                tokens_per_byte,
            )
        )
    return Table(columns, tuple(rows), title)


def lengths_table(accounts: Mapping[str, Account]) -> Table:
    """Return the mean length of the documents of each source."""
    columns = (
        label("source"),
        number("documents"),
        number("tokens", "tokens of a document", lambda value: f"{value:,.1f}"),
        number("bytes", "bytes of text", lambda value: f"{value:,.1f}"),
        number("ratio", "bytes of a token", lambda value: f"{value:.2f}"),
    )
    rows: list[tuple[Any, ...]] = []
    has_text = any(account.text_bytes for account in accounts.values())
    for source_name, account in accounts.items():
        # A source without documents has no means.
        if not account.documents:
            continue
        mean_tokens = account.tokens / account.documents
        if not has_text:
            rows.append((source_name, account.documents, mean_tokens))
            continue
        mean_bytes = account.text_bytes / account.documents
        bytes_per_token = None
        if account.tokens:
            bytes_per_token = account.text_bytes / account.tokens
        rows.append(
            (source_name, account.documents, mean_tokens, mean_bytes, bytes_per_token)
        )
    # Imported ids have no text, so that the two columns about text are left out.
    if not has_text:
        return Table(columns[:3], tuple(rows), "Lengths")
    return Table(columns, tuple(rows), "Lengths")


def _reasons(reasons: Mapping[str, int]) -> str:
    """Return counts by reason, sorted by reason: ``1 empty, 2 excluded``."""
    texts: list[str] = []
    for reason, records in sorted(reasons.items()):
        if records:
            texts.append(f"{count(records)} {reason}")
    return ", ".join(texts)


def about_sources(manifest: Manifest) -> list[Table]:
    """Return the table of the sources; for a mixture, those of its shares and order."""
    if manifest.mixture is None:
        return [sources_table(manifest.accounts)]
    return [mixture_table(manifest.mixture), order_table(manifest.mixture)]


CUT: Final = {"long_documents_truncate": "truncated", "long_documents_split": "split"}
"""Reason under ``normalized`` in the account -> participle for documents that were
cut.
"""

_CUT_PLACES: Final = {
    "simple": "at a token",
    "word": "between words",
    "sentence": "between sentences",
    "smart": "between sentences or words",
}
_CUT_ENDS: Final = {
    "right": "their ends are cut away",
    "left": "their beginnings are cut away",
}


def length_policy(settings: ResolvedTokenizer) -> str:
    """Return the treatment of long documents in a few words: ``truncated at 2,048``."""
    max_length = count(settings.max_length)
    phrases = {
        "keep": "kept",
        "truncate": f"truncated at {max_length}",
        "split": f"split at {max_length}",
        "drop": f"left out above {max_length}",
    }
    return phrases[settings.long_documents]


def expected_lengths(
    settings: ResolvedTokenizer,
    documents: int,
    long: int,
    tokens: int,
    dropped: int,
    *,
    masked: bool = False,
) -> str:
    """Return the expected treatment of long documents, and about its cost in tokens.

    Args:
        settings: Tokenizer settings of the source.
        documents: Estimated number of documents.
        long: Estimated number of documents that are longer than ``max_length``.
        tokens: Estimated number of tokens, before the policy is applied.
        dropped: Estimated number of tokens that the policy drops.
        masked: True if only some tokens of a document count toward the loss. Default:
            False.
    """
    if settings.long_documents == "keep":
        return "kept whole, nothing is dropped"
    # Splitting drops no tokens, unless a piece has no token that counts toward the
    # loss.
    piece_remark = "nothing is dropped"
    if masked:
        piece_remark = "those without loss are left out"
    cut_place = _CUT_PLACES[settings.truncation_strategy]
    cut_end = _CUT_ENDS[settings.truncation_side]
    phrases = {
        "truncate": f"truncated {cut_place}, {cut_end}",
        "split": f"split into pieces, {piece_remark}",
        "drop": "left out",
    }
    treatment = phrases[settings.long_documents]
    max_length = count(settings.max_length)
    if not long:
        return f"no document of the sample is longer than {max_length} tokens; longer ones are {treatment}"

    cost = ""
    if settings.long_documents != "split":
        cost = f", about {_share(dropped, tokens)} of tokens dropped"
    return f"about {_share(long, documents)} of documents are longer than {max_length} tokens: {treatment}{cost}"


def truncation_remarks(account: Account) -> list[str]:
    """Return sentences about long documents; none if all documents were kept."""
    sentences: list[str] = []
    for reason, participle in CUT.items():
        documents = account.normalized.get(reason)
        if documents:
            sentences.append(
                f"long documents {participle}: {count(documents)} of "
                f"{count(account.kept)}{_dropped(account, participle)}"
            )
    explanations = {
        "too_long": "too long",
        "nothing_to_learn": "nothing to learn is left of them",
    }
    for reason, explanation in explanations.items():
        documents = account.filtered.get(reason)
        if documents:
            sentences.append(
                f"documents left out, {explanation}: {count(documents)}{_dropped(account, reason)}"
            )
    # Pieces can be dropped although no document was left out altogether.
    has_dropped_pieces = "nothing_to_learn" in account.dropped
    if has_dropped_pieces and not account.filtered.get("nothing_to_learn"):
        sentences.append(
            f"pieces left out, nothing to learn in them{_dropped(account, 'nothing_to_learn')}"
        )
    return sentences


def _dropped(account: Account, reason: str) -> str:
    """Return the end of a sentence: the tokens that were dropped for a reason."""
    tokens = account.dropped.get(reason)
    if not tokens:
        return ""
    share_of_tokens = percent(tokens, account.tokens)
    return (
        f"; {count(tokens)} of {count(account.tokens)} tokens dropped "
        f"({share_of_tokens})"
    )


def _share(part: int, total: int) -> str:
    """Return an estimated share, with no more digits than a sample can support."""
    # Both limits are compared in integers: 0.1% and 10% of the total.
    if part * 1000 < total:
        return "less than 0.1%"
    if part * 100 >= 10 * total:
        return percent(part, total, 0)
    return percent(part, total, 1)


_STEP_NAMES: Final = {
    "listing": "looking for files",
    "hashing": "hashing",
    "splitting": "reading footers",
    "counting": "counting records",
}


def planning_line(
    source: str, step: str, files: int, all_files: int, bytes_: int, all_bytes: int
) -> str:
    """Return the progress of planning a source in a line.

    An example: ``web: hashing, 31,204 of 100,000 files, 1.20 GiB of 20.1 GiB``.

    Args:
        source: Name of the source.
        step: ``listing``, ``hashing``, ``splitting`` or ``counting``.
        files: Number of files that are done.
        all_files: Number of all files; 0 while it is unknown.
        bytes_: Number of bytes that are done.
        all_bytes: Number of all bytes; 0 while it is unknown.
    """
    file_progress = numbers.plural(all_files or files, "file")
    if all_files:
        file_progress = f"{numbers.count(files)} of {file_progress}"
    parts = [f"{source}: {_STEP_NAMES[step]}", file_progress]
    # Listing finds files before it knows their sizes: no bytes are shown then.
    if all_bytes:
        parts.append(f"{numbers.size(bytes_)} of {numbers.size(all_bytes)}")
    elif bytes_:
        parts.append(numbers.size(bytes_))
    return ", ".join(parts)


Points: TypeAlias = Sequence[tuple[int, Mapping[str, float]]]
"""(step, source -> weight), steps ascending."""

_INTERPOLATION_WORDS: Final = {
    "step": "each set holding until the next",
    "linear": "moving in straight lines in between",
    "cosine": "moving along half cosines in between",
}
STOPS: Final = {
    "restart": "a source that ends starts again, in another order",
    "first_exhausted": "it ends with the first source that does",
    "all_exhausted": "it ends with the last source; one that ended before is skipped",
}
"""Stop strategy -> the effect of an exhausted source on the mixture, in words."""


def share(value: float) -> str:
    """Return a share in percent: ``30.00%``.

    A tiny share has two more digits, so that it is not shown as zero: ``0.0012%``.

    >>> share(0.3), share(0.0001), share(0.0000123), share(1.0)
    ('30.00%', '0.01%', '0.0012%', '100.00%')
    """
    is_tiny = 0 < value < 0.0001
    digits = 2
    if is_tiny:
        digits = 4
    return numbers.percent(value, 1, digits)


def epochs(source: MixedSource) -> float | None:
    """Return how often the rows of a source were drawn, on average.

    None for a source without rows.
    """
    if not source.rows:
        return None
    return source.drawn_rows / source.rows


def asked(source: MixedSource) -> float:
    """Return the configured share of a source.

    It is a share of tokens if weights are given by tokens, and otherwise of rows.
    """
    if source.asked_tokens is None:
        return source.asked
    return source.asked_tokens


def mixture_table(record: MixtureRecord, title: str | None = "Mixture") -> Table:
    """Return a row for each source: configured share, achieved shares, and epochs."""
    records: list[dict[str, Any]] = []
    for source_name, source in record.sources.items():
        records.append(
            {
                **source.to_json(),
                "source": source_name,
                "parent": parent(source),
                "asked": asked(source),
                "epochs": epochs(source),
            }
        )
    # The configured share stands beside the achieved share of the same unit, because
    # these two are compared.
    achieved_rows = number("achieved_rows", "of rows", share)
    achieved_tokens = number("achieved_tokens", "of tokens", share)
    achieved_shares = [achieved_tokens, achieved_rows]
    if record.weights_by == "rows":
        achieved_shares.reverse()
    columns = (
        label("source"),
        label("parent", "from"),
        number("asked", f"asked of {record.weights_by}", share),
        *achieved_shares,
        number("epochs", "epochs", lambda value: f"{value:.2f}"),
        number("drawn_rows", "rows drawn"),
        number("drawn_tokens", "tokens drawn"),
        number("unread_rows", "never drawn"),
    )
    return Table.of(columns, records, title)


def order_table(record: MixtureRecord, title: str | None = "Order") -> Table:
    """Return the order of the rows in words, with all that is needed to repeat it."""
    order = record.order
    level = record.level
    if record.level == "documents" and record.rows.sequences:
        level += " and then packed"
    pairs = [("mixed", level)]

    # A source with a maximum share is shortened before it is mixed.
    if order.kept:
        shortened_sources: list[str] = []
        for name, rows in order.kept.items():
            source_rows = numbers.count(record.sources[name].rows)
            shortened_sources.append(
                f"{name} to {numbers.count(rows)} of {source_rows} rows"
            )
        pairs.append(("shortened", ", ".join(shortened_sources)))

    # Weights of tokens are converted into weights of rows, by the mean length of a row.
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
    """Return weights in words: ``code 30.00%, text 70.00% of documents``.

    For a schedule: all points, and how weights move between them.

    Args:
        points: Pairs (step, weights).
        interpolation: ``step``, ``linear`` or ``cosine``.
        step_rows: Number of rows of a step.
        of: Noun that the weights count: ``documents`` or ``sequences``.
    """
    if len(points) == 1:
        return f"{_weights(points[0][1])} of {of}"
    point_texts: list[str] = []
    for step, weights in points:
        point_texts.append(f"{_weights(weights)} at step {numbers.count(step)}")
    step_length = f"a step being {numbers.plural(step_rows, 'row')}"
    movement = _INTERPOLATION_WORDS[interpolation]
    return f"of {of}: {'; '.join(point_texts)}; {movement}, {step_length}"


def parent(source: MixedSource) -> str:
    """Return a source's version: ``web.tokens@v3``, and a split other than train."""
    version_name = f"{source.dataset}@v{source.version}"
    if source.split == "train":
        return version_name
    return f"{version_name} ({source.split})"


def sentence(record: MixtureRecord) -> str:
    """Return the sources of a mixture in words, for an introduction.

    An example: ``code (31.20% of the tokens, 1.37 epochs) and web (68.80%, ...)``.
    """
    phrases: list[str] = []
    for source_name, source in record.sources.items():
        token_share = share(source.achieved_tokens)
        source_epochs = epochs(source) or 0.0
        phrases.append(
            f"{source_name} ({token_share} of the tokens, {source_epochs:.2f} epochs)"
        )
    last_phrase = phrases.pop()
    if not phrases:
        return last_phrase
    return f"{', '.join(phrases)} and {last_phrase}"


def points_of(record: MixtureRecord) -> Points:
    """Return the points of a mixture's schedule, with weights in the order of sources.

    A manifest is canonical JSON, which sorts the names of the weights.
    """
    points: list[tuple[int, dict[str, float]]] = []
    for point in record.order.points:
        weights = {source: point.weights[source] for source in record.sources}
        points.append((point.step, weights))
    return points


def _weights(weights: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {share(weight)}" for name, weight in weights.items())
