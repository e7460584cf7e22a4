"""A manifest as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from tokenlake.manifest import Manifest
from tokenlake.report import numbers
from tokenlake.report.table import Table, facts, label, number


def fill(manifest: Manifest) -> str:
    """How much of a packed dataset's slots is not padding, e.g. ``99.87%``."""
    account = manifest.account
    return numbers.percent(account.slots - account.pad, account.slots)


def shape(manifest: Manifest) -> str:
    """``2,507 x 2,048, 99.87% full`` for packed sequences, ``1,832 documents`` for tokens."""
    rows = numbers.count(manifest.totals.rows)
    if manifest.preference is not None:
        return f"{rows} for {manifest.preference[0]}, in the columns of {manifest.preference[1]}"
    if manifest.seq_length is None:
        return f"{rows} documents"
    return f"{rows} x {numbers.count(manifest.seq_length)}, {fill(manifest)} full"


def stored(manifest: Manifest) -> str:
    """``7.10 MiB in 9 shards, 11.4 bits per token``."""
    totals = manifest.totals
    written = f"{numbers.size(totals.bytes)} in {numbers.plural(totals.files, 'shard')}"
    return f"{written}, {totals.bytes * 8 / totals.tokens:.1f} bits per token" if totals.tokens else written


def headline(manifest: Manifest) -> Table:
    """What a person wants to know first."""
    account = manifest.account
    # Of packed rows that were passed on nobody counted documents again: the account's are the rows.
    passed_on = manifest.mixture is not None and manifest.mixture.level == "sequences"
    pairs = [
        *([] if passed_on else [("documents", numbers.count(account.documents))]),
        ("tokens", _tokens(manifest)),
        ("sequences" if manifest.seq_length else "rows", shape(manifest)),
        ("stored", stored(manifest)),
    ]
    return facts(pairs)


def _tokens(manifest: Manifest) -> str:
    """``6,317,546 (2,165 EOS) from 21.4 MiB of text``; the total is what ``ls`` and ``splits`` count too."""
    account = manifest.account
    special = [f"{numbers.count(n)} {name}" for name, n in (("BOS", account.bos), ("EOS", account.eos)) if n]
    of_which = f" ({', '.join(special)})" if special else ""
    # Of what was made from stored tokens the bytes of text are its parents' affair.
    text = f" from {numbers.size(account.text_bytes)} of text" if account.text_bytes else ""
    return f"{numbers.count(manifest.totals.tokens)}{of_which}{text}"


def splits_table(manifest: Manifest) -> Table:
    """Totals of each split."""
    columns = [
        label("split"),
        number("rows", "sequences" if manifest.seq_length else "rows"),
        number("tokens"),
        number("documents"),
        number("files", "shards"),
        number("bytes", "size", numbers.size),
    ]
    records = [{"split": name, **totals.to_json()} for name, totals in manifest.splits.items()]
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
        line = lines.setdefault(digest, {**described, "sources": [], "sha256": digest[:12]})
        line["sources"].append(source)
    records = [{**line, "sources": ", ".join(line["sources"])} for line in lines.values()]
    return Table.of(columns, records, "Tokenizer")


def inputs_table(manifest: Manifest) -> Table:
    """Input files by source."""
    columns = [label("source"), number("files"), number("bytes", "size", numbers.size), label("example")]
    files = Counter(entry.source for entry in manifest.inputs)
    records: list[dict[str, Any]] = []
    # A mixture's inputs are those of its parents, by the names that the sources have there.
    for source in manifest.accounts if manifest.mixture is None else files:
        mine = [entry for entry in manifest.inputs if entry.source == source]
        total = sum(entry.size for entry in mine)
        records.append(
            {
                "source": source,
                "files": files[source],
                "bytes": total,
                "example": mine[0].path if mine else "",
            }
        )
    return Table.of(columns, records, "Inputs")


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
    records = [{**shard.to_json(), "sha256": shard.sha256[:12]} for shard in manifest.files]
    return Table.of(columns, records, "Shards")


def versions(produced_by: Mapping[str, str]) -> str:
    """``tokenlake 0.1.0, pyarrow 26.0.1``."""
    return ", ".join(f"{name} {version}" for name, version in sorted(produced_by.items()))
