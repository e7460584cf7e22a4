"""The dataset card: ``README.md`` of a version, a pure function of its manifest.

The YAML header's ``configs:`` names each split's files by glob, so that the Hub's viewer, ``load_dataset``
and a person with DuckDB all find the shards without being told of ``data/``.
"""

from __future__ import annotations

import json

from tokenlake import numbers
from tokenlake.preference_columns import IGNORED, TrainerColumn, columns_for
from tokenlake.reports import dataset
from tokenlake.reports.dataset import account_table, lengths_table, remarks, sources_table
from tokenlake.reports.mixture import mixture_table, order_table, recipe, sentence
from tokenlake.reports.table import Table, to_markdown
from tokenlake.store.manifest import Manifest
from tokenlake.store.mixture import MixtureRecord

_SIZES = (
    (10**3, "n<1K"),
    (10**4, "1K<n<10K"),
    (10**5, "10K<n<100K"),
    (10**6, "100K<n<1M"),
    (10**7, "1M<n<10M"),
    (10**8, "10M<n<100M"),
    (10**9, "100M<n<1B"),
    (10**10, "1B<n<10B"),
    (10**11, "10B<n<100B"),
    (10**12, "100B<n<1T"),
)

_SAID = ("license", "language", "task_categories")
"""What a configuration says of the texts, by the Hub's names; a list of one line is YAML, too."""

_PLACE = (
    "- `file`, `position`: where the document comes from: the id of an input file (the table is in\n"
    "  `manifest.json`), and the row number or byte offset in it.\n"
)


def render_card(manifest: Manifest) -> str:
    """Return the card as Markdown with a YAML header. Equal manifests give equal text.

    The hash of the manifest is not in it: the manifest holds the hash of the card.
    """
    sections = [
        _header(manifest),
        f"# {manifest.dataset} v{manifest.version}\n",
        _introduction(manifest),
        "## Splits\n\n" + _table(dataset.splits_table(manifest)),
        "## Columns\n\n" + _columns(manifest),
        _sources(manifest),
        "## Tokenizer\n\n" + _table(dataset.tokenizers_table(manifest)),
        "## Account\n\nNothing is lost silently; these equations were checked when the version was committed.\n\n"
        + _account(manifest),
        "## Reading it\n\n" + _reading(manifest),
    ]
    return "\n".join(sections)


def _header(manifest: Manifest) -> str:
    lines = ["---"]
    if manifest.splits:
        lines += ["configs:", "- config_name: default", "  data_files:"]
        for split in manifest.splits:
            # quoted: a split called `no` or `1` must stay text
            lines += [f"  - split: {json.dumps(split)}", f"    path: {_paths(manifest, split)}"]
    said = manifest.config.get("card", {})
    lines += [f"{name}: {json.dumps(said[name], ensure_ascii=False)}" for name in _SAID if name in said]
    lines += [
        "tags:",
        "- tokenlake",
        "- pretokenized",
        "size_categories:",
        f"- {_size(manifest.totals.rows)}",
    ]
    return "\n".join([*lines, "---", ""])


def _paths(manifest: Manifest, split: str) -> str:
    """A glob; the files by name where the glob would also take another split's (train, train-long)."""
    if not any(other.startswith(f"{split}-") for other in manifest.splits):
        return json.dumps(f"data/{split}-*.parquet")
    return json.dumps([shard.path for shard in manifest.files if shard.split == split])


def _size(rows: int) -> str:
    return next((name for limit, name in _SIZES if rows < limit), "n>1T")


def _introduction(manifest: Manifest) -> str:
    account = manifest.account
    text = f"{numbers.plural(account.documents, 'document')} with {numbers.plural(account.tokens, 'token')} of text"
    if manifest.mixture is not None:
        return _mixed(manifest, manifest.mixture)
    if manifest.preference is not None:
        method, trainer = manifest.preference
        names = {"trl": "TRL", "easydel": "EasyDeL"}
        return (
            f"Tokenized preferences for {method.upper()} in the columns of {names[trainer]}'s trainers, written by "
            f"tokenlake: {numbers.plural(account.documents, 'row')} with "
            f"{numbers.plural(account.tokens, 'token')} of text; {dataset.stored(manifest)}.\n"
        )
    if not manifest.width:
        return f"Tokenized documents, written by tokenlake: {text}; {dataset.stored(manifest)}.\n"
    rows = f"{numbers.plural(manifest.totals.rows, 'sequence')} of {numbers.count(manifest.width)} tokens"
    return (
        f"Packed token sequences, written by tokenlake: {text} in {rows}, {dataset.fill(manifest)} full; "
        f"{dataset.stored(manifest)}.\n"
    )


def _mixed(manifest: Manifest, mixture: MixtureRecord) -> str:
    rows = numbers.plural(manifest.totals.rows, "sequence" if manifest.width else "document")
    full = ""
    if manifest.width:
        rows += f" of {numbers.count(manifest.width)} tokens"
        full = f", {dataset.fill(manifest)} full"
    return (
        f"{'Packed token sequences' if manifest.width else 'Tokenized documents'}, mixed by tokenlake of "
        f"{sentence(mixture)}; {rows}{full}; {dataset.stored(manifest)}.\n"
    )


def _columns(manifest: Manifest) -> str:
    if manifest.preference is not None:
        lines = [f"- `{column.name}`: {_told(column)}.\n" for column in columns_for(*manifest.preference)]
        return "".join(lines) + _further(manifest) + _PLACE
    if not manifest.width:
        return "- `input_ids`: the document's token ids (int32).\n" + _further(manifest) + _PLACE
    length = numbers.count(manifest.width)
    return (
        f"- `input_ids`: exactly {length} token ids (int32).\n"
        "- `segment_lengths`: how many ids each piece of a document takes, in order; what is left is padding.\n"
        "- `documents`: for the same pieces, `file` (the id of an input file; the table is in `manifest.json`),\n"
        "  `position` (row number or byte offset in it) and `start` (the piece's first token within its document).\n"
    )


def _told(column: TrainerColumn) -> str:
    whose = " and ".join(column.parts)
    return {
        "ids": f"token ids (int32) of {whose}",
        "mask": f"a 1 (int8) for each of them of {whose}",
        "labels": f"token ids of {column.parts[-1] if column.parts else ''}, {IGNORED} for the prompt's (int32)",
        "label": "whether the answer is good (bool)",
        "text": "the prompt as text",
    }[column.holds]


def _further(manifest: Manifest) -> str:
    """The columns that not every dataset of unpacked rows has."""
    build = manifest.config.get("build", {})
    mask = (
        "- `attention_mask`: 1 for an id of the document, 0 for padding.\n"
        if "attention_mask" in build
        else ""
    )
    names = ", ".join(f"`{name}`" for name, _ in build.get("kept", ()))
    return mask + (f"- {names}: kept from the input.\n" if names else "")


def _account(manifest: Manifest) -> str:
    notes = "".join(f"- {remark}\n" for remark in remarks(manifest.account))
    return _table(account_table(manifest, None)) + (f"\n{notes}" if notes else "")


def _sources(manifest: Manifest) -> str:
    if manifest.mixture is None:
        return (
            f"## Sources\n\n{_table(sources_table(manifest.accounts))}\n"
            f"## Lengths\n\n{_table(lengths_table(manifest.accounts))}\n"
            f"On the average; `tokenlake report {manifest.dataset}@v{manifest.version}` draws how they vary.\n"
        )
    return (
        f"## Mixture\n\n{_table(mixture_table(manifest.mixture))}\n{_table(order_table(manifest.mixture))}\n"
        "The order is a function of the position; nothing of it is stored. The same rows are made again, in the store "
        f"that holds the versions above, by `tokenlake run` of\n\n```yaml\n{recipe(manifest, manifest.mixture)}```\n"
    )


def _reading(manifest: Manifest) -> str:
    split = "train" if "train" in manifest.splits else next(iter(manifest.splits), "train")
    name = f"{manifest.dataset}@v{manifest.version}"
    return (
        "From the store:\n\n"
        "```sh\n"
        f"tokenlake peek {name} -n 3\n"
        f"tokenlake verify {name}\n"
        "```\n\n"
        "```python\n"
        "import tokenlake as tl\n\n"
        f'data = tl.open("path/to/store", "{name}", split="{split}")\n'
        "for_jax = tl.DataLoader(data, batch_size=8)\n"
        "for_torch = tl.torch_dataset(data, batch_size=8)\n"
        "```\n\n"
        "From this folder, without tokenlake:\n\n"
        "```python\n"
        "from datasets import load_dataset\n\n"
        f'rows = load_dataset("path/to/this/folder", split="{split}")\n'
        "```\n\n"
        "```python\n"
        "import polars as pl\n\n"
        'rows = pl.scan_parquet("path/to/this/folder/data/*.parquet")\n'
        "```\n\n"
        "```sql\n"
        "-- DuckDB\n"
        "select count(*) from 'path/to/this/folder/data/*.parquet';\n"
        "```\n"
    )


def _table(table: Table) -> str:
    return to_markdown(Table(table.columns, table.rows))
