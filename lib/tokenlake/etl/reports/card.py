"""The dataset card of a version, ``README.md``: a pure function of its manifest.

The card's YAML header names each split's files by glob under ``configs:``. The Hub's
viewer, ``load_dataset`` and a person with DuckDB therefore find the shards without
knowing of ``data/``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from tokenlake.base import numbers
from tokenlake.base.columns import IGNORED, columns_for
from tokenlake.base.markup import code_span, markdown_text, printable_json
from tokenlake.etl.reports import Table, dataset, to_markdown
from tokenlake.etl.reports.dataset import (
    account_table,
    lengths_table,
    mixture_table,
    order_table,
    points_of,
    remarks,
    sentence,
    sources_table,
)
from tokenlake.runtime.store.manifest import Manifest
from tokenlake.runtime.store.mixture import FIRST_ORDER, MixtureRecord

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
"""What a configuration says of the texts, by the Hub's names; a list of one line is
YAML, too.
"""
_PACK: Final = (
    *(
        "seq_length",
        "eos_token_id",
        "pad_token_id",
        "strategy",
        "window_tokens",
        "store_segment_ids",
    ),
    *("num_packers", "max_segments"),
)
_PLACE = (
    "- `file`, `position`: where the document comes from: the id of an input file (the table is in\n"
    "  `manifest.json`), and the row number or byte offset in it.\n"
)


def render_card(manifest: Manifest) -> str:
    """Return the card as Markdown with a YAML header. Equal manifests give equal text.

    The hash of the manifest is not in it: the manifest holds the hash of the card.
    """
    split = (
        "train" if "train" in manifest.splits else next(iter(manifest.splits), "train")
    )
    name = f"{manifest.dataset}@v{manifest.version}"
    notes = "".join(
        f"- {markdown_text(remark)}\n" for remark in remarks(manifest.account)
    )
    # A card is one of the files of a version, so its words stay: repair writes it
    # again, byte for byte.
    equations = account_table(manifest, None, {"rows_read": "rows read"})
    account = _table(equations) + (f"\n{notes}" if notes else "")
    sections = [
        _header(manifest),
        f"# {manifest.dataset} v{manifest.version}\n",
        _introduction(manifest),
        "## Splits\n\n" + _table(dataset.splits_table(manifest)),
        "## Columns\n\n" + _columns(manifest),
        _sources(manifest),
        "## Tokenizer\n\n" + _table(dataset.tokenizers_table(manifest)),
        f"{_ACCOUNT}\n\n{account}",
        _READING.format(name=name, split=split),
    ]
    return "\n".join(sections)


_ACCOUNT: Final = """\
## Account

Nothing is lost silently; these equations were checked when the version was committed."""
_READING: Final = """\
## Reading it

From the store:

```sh
tokenlake peek {name} -n 3
tokenlake verify {name}
```

```python
import tokenlake as tl

data = tl.open("path/to/store", "{name}", split="{split}")
for_jax = tl.DataLoader(data, batch_size=8)
for_torch = tl.torch_dataset(data, batch_size=8)
```

From this folder, without tokenlake:

```python
from datasets import load_dataset

rows = load_dataset("path/to/this/folder", split="{split}")
```

```python
import polars as pl

rows = pl.scan_parquet("path/to/this/folder/data/*.parquet")
```

```sql
-- DuckDB
select count(*) from 'path/to/this/folder/data/*.parquet';
```
"""


def _header(manifest: Manifest) -> str:
    lines = ["---"]
    if manifest.splits:
        lines += ["configs:", "- config_name: default", "  data_files:"]
        for split in manifest.splits:
            paths: str | list[str] = f"data/{split}-*.parquet"
            if any(other.startswith(f"{split}-") for other in manifest.splits):
                # The glob would also take another split's (train, train-long).
                paths = [shard.path for shard in manifest.files if shard.split == split]
            # quoted: a split called `no` or `1` must stay text
            lines += [
                f"  - split: {json.dumps(split)}",
                f"    path: {json.dumps(paths)}",
            ]
    said = manifest.config.get("card", {})
    for name in _SAID:
        if name in said:
            # YAML reads a text of JSON as it is, but for control characters that JSON
            # leaves as they are.
            lines.append(
                f"{name}: {printable_json(json.dumps(said[name], ensure_ascii=False))}"
            )
    size = next(
        (name for limit, name in _SIZES if manifest.totals.rows < limit), "n>1T"
    )
    lines += [
        "tags:",
        "- tokenlake",
        "- pretokenized",
        "size_categories:",
        f"- {size}",
        "---",
        "",
    ]
    return "\n".join(lines)


def _introduction(manifest: Manifest) -> str:
    account, what = (
        manifest.account,
        "Packed token sequences" if manifest.width else "Tokenized documents",
    )
    tokens, rows = f"{numbers.plural(account.tokens, 'token')} of text", ""
    if manifest.width:
        many = numbers.plural(manifest.totals.rows, "sequence")
        rows = f"{many} of {numbers.count(manifest.width)} tokens, {dataset.fill(manifest)} full"
    if manifest.mixture is not None:
        rows = rows or numbers.plural(manifest.totals.rows, "document")
        sources = markdown_text(sentence(manifest.mixture))
        return f"{what}, mixed by tokenlake of {sources}; {rows}; {dataset.stored(manifest)}.\n"
    of = "document"
    if manifest.preference is not None:
        method, trainer = manifest.preference
        names, of = {"trl": "TRL", "easydel": "EasyDeL"}, "row"
        what = f"Tokenized preferences for {method.upper()} in the columns of {names[trainer]}'s trainers"
    formats = dataset.import_formats(manifest)
    writing = "written by tokenlake"
    if formats:
        writing = f"imported by tokenlake from files of another tool ({formats})"
        tokens = numbers.plural(account.tokens, "token")
    text = (
        f"{numbers.plural(account.documents, of)} with {tokens}{rows and ' in '}{rows}"
    )
    return f"{what}, {writing}: {text}; {dataset.stored(manifest)}.\n"


def _columns(manifest: Manifest) -> str:
    if manifest.preference is not None:
        lines: list[str] = []
        for column in columns_for(*manifest.preference):
            whose, last = (
                " and ".join(column.parts),
                column.parts[-1] if column.parts else "",
            )
            told = {
                "ids": f"token ids (int32) of {whose}",
                "mask": f"a 1 (int8) for each of them of {whose}",
                "labels": f"token ids of {last}, {IGNORED} for the prompt's (int32)",
                "label": "whether the answer is good (bool)",
                "text": "the prompt as text",
            }
            lines.append(f"- `{column.name}`: {told[column.holds]}.\n")
        return "".join(lines) + _further(manifest) + _PLACE
    if not manifest.width:
        return (
            "- `input_ids`: the document's token ids (int32).\n"
            + _further(manifest)
            + _PLACE
        )
    length = numbers.count(manifest.width)
    return (
        f"- `input_ids`: exactly {length} token ids (int32).\n"
        "- `segment_lengths`: how many ids each piece of a document takes, in order; what is left is padding.\n"
        "- `documents`: for the same pieces, `file` (the id of an input file; the table is in `manifest.json`),\n"
        "  `position` (row number or byte offset in it) and `start` (the piece's first token within its document).\n"
    )


def _further(manifest: Manifest) -> str:
    """Return the columns that only some datasets of unpacked rows have."""
    build = manifest.config.get("build", {})
    lines = ""
    if "attention_mask" in build:
        lines += "- `attention_mask`: 1 for an id of the document, 0 for padding.\n"
    names = ", ".join(code_span(name) for name, _ in build.get("kept", ()))
    if names:
        lines += f"- {names}: kept from the input.\n"
    return lines


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


def _table(table: Table) -> str:
    return to_markdown(Table(table.columns, table.rows))


def recipe(manifest: Manifest, record: MixtureRecord) -> str:
    """Return a configuration, as YAML, that makes the same rows again from the same
    parents.
    """
    lines = [f"name: {manifest.dataset}", "datasets:"]
    for name, source in record.sources.items():
        lines.append(
            f"- {{name: {json.dumps(name)}, dataset: {source.dataset}@v{source.version}, "
            f"split: {json.dumps(source.split)}}}"
        )
    lines += _mix_section(record)
    pack = manifest.config.get("build", {}).get("pack")
    if pack:
        lines += _pack_section(pack)
    return "\n".join(lines) + "\n"


def _mix_section(record: MixtureRecord) -> list[str]:
    """Return the lines of the section `mix`."""
    order = record.order
    lines = ["mix:"]
    if order.kept:
        # Several shares give the same number of rows: the middle one is written.
        shares = {
            name: (rows + 0.5) / record.sources[name].rows
            for name, rows in order.kept.items()
        }
        lines.append(f"  max_fraction: {json.dumps(shares)}")
    lines.append("  weight_schedule:")
    for step, weights in points_of(record):
        lines.append(f"  - {{step: {step}, weights: {json.dumps(dict(weights))}}}")
    lines.append(f"  weight_schedule_type: {order.interpolation}")
    keys = ("step_rows", "block_size", "seed", "lanes", "batch_size")
    lines += [f"  {key}: {getattr(order, key)}" for key in keys]
    if order.version != FIRST_ORDER:
        lines.append(f"  order: {order.version}")
    lines += [f"  stop_strategy: {order.stop}", f"  total_rows: {order.rows}"]
    return lines


def _pack_section(pack: Mapping[str, Any]) -> list[str]:
    """Return the lines of the seed and of the section `pack`."""
    lines: list[str] = []
    seed = pack.get("shuffle_seed")
    if seed is not None:
        lines.append(f"seed: {seed}")
    lines += ["pack:", "  enabled: true"]
    # The order of keys is fixed here: the order in a manifest that was read differs
    # from that at the first writing.
    names = [name for name in _PACK if name in pack] + sorted(
        pack.keys() - {*_PACK, "shuffle_seed"}
    )
    for name in names:
        if pack[name] is not None:
            lines.append(f"  {name}: {json.dumps(pack[name])}")
    lines.append(f"  shuffle_packed: {json.dumps(seed is not None)}")
    return lines
