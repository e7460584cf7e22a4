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
# Keys of section `card` that the Hub reads under the same names. A list on one line is
# valid YAML, too.
_CARD_KEYS: Final = ("license", "language", "task_categories")

# Keys of section `pack` in the order in which a recipe writes them.
_PACK: Final = (
    "seq_length",
    "eos_token_id",
    "pad_token_id",
    "strategy",
    "window_tokens",
    "store_segment_ids",
    "num_packers",
    "max_segments",
)
_PLACE_LINES: Final = (
    "- `file`, `position`: where the document comes from: the id of an input file (the table is in\n"
    "  `manifest.json`), and the row number or byte offset in it.\n"
)
_TRAINER_NAMES: Final = {"trl": "TRL", "easydel": "EasyDeL"}


def render_card(manifest: Manifest) -> str:
    """Return the card as Markdown with a YAML header. Equal manifests give equal text.

    The hash of the manifest is not in it: the manifest holds the hash of the card.
    """
    name = f"{manifest.dataset}@v{manifest.version}"
    # A card is one of the files of a version, so its words stay: repair writes it
    # again, byte for byte. That is why sums and terms have their older names here.
    equations = account_table(manifest, None, {"rows_read": "rows read"}, {})
    account = _table(equations)
    notes: list[str] = []
    for remark in remarks(manifest.account):
        notes.append(f"- {markdown_text(remark)}\n")
    if notes:
        account += "\n" + "".join(notes)
    sections = [
        _header(manifest),
        f"# {manifest.dataset} v{manifest.version}\n",
        _introduction(manifest),
        "## Splits\n\n" + _table(dataset.splits_table(manifest)),
        "## Columns\n\n" + _columns(manifest),
        _sources(manifest),
        "## Tokenizer\n\n" + _table(dataset.tokenizers_table(manifest)),
        f"{_ACCOUNT}\n\n{account}",
        _READING.format(name=name, split=_example_split(manifest)),
    ]
    return "\n".join(sections)


def _example_split(manifest: Manifest) -> str:
    """Return the split of the card's examples: train, or otherwise the first one."""
    if "train" in manifest.splits or not manifest.splits:
        return "train"
    return next(iter(manifest.splits))


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
    """Return the YAML header, by which the Hub and ``load_dataset`` find the splits."""
    lines = ["---"]
    if manifest.splits:
        lines += ["configs:", "- config_name: default", "  data_files:"]
        for split in manifest.splits:
            paths: str | list[str] = f"data/{split}-*.parquet"
            if any(other.startswith(f"{split}-") for other in manifest.splits):
                # The glob would also take another split's (train, train-long).
                paths = [shard.path for shard in manifest.files if shard.split == split]
            # Quoted: YAML would read a split called `no` or `1` as another type.
            lines.append(f"  - split: {json.dumps(split)}")
            lines.append(f"    path: {json.dumps(paths)}")

    # The statements of section `card` about the texts.
    card = manifest.config.get("card", {})
    for key in _CARD_KEYS:
        if key in card:
            # JSON is YAML but for control characters, which JSON leaves as they are.
            json_text = json.dumps(card[key], ensure_ascii=False)
            lines.append(f"{key}: {printable_json(json_text)}")
    lines += [
        "tags:",
        "- tokenlake",
        "- pretokenized",
        "size_categories:",
        f"- {_size_category(manifest.totals.rows)}",
        "---",
        "",
    ]
    return "\n".join(lines)


def _size_category(rows: int) -> str:
    """Return the Hub's category of a number of rows."""
    for limit, category in _SIZES:
        if rows < limit:
            return category
    return "n>1T"


def _introduction(manifest: Manifest) -> str:
    """Return the sentence below the title: content, origin and size of the version."""
    account = manifest.account
    subject = "Tokenized documents"
    rows = ""
    if manifest.width:
        subject = "Packed token sequences"
        sequences = numbers.plural(manifest.totals.rows, "sequence")
        width = numbers.count(manifest.width)
        rows = f"{sequences} of {width} tokens, {dataset.fill(manifest)} full"

    if manifest.mixture is not None:
        if not rows:
            rows = numbers.plural(manifest.totals.rows, "document")
        sources = markdown_text(sentence(manifest.mixture))
        return f"{subject}, mixed by tokenlake of {sources}; {rows}; {dataset.stored(manifest)}.\n"

    # A row of preference data holds several texts, so that it is not called a document.
    row_noun = "document"
    if manifest.preference is not None:
        method, trainer = manifest.preference
        row_noun = "row"
        trainer_name = _TRAINER_NAMES[trainer]
        subject = f"Tokenized preferences for {method.upper()} in the columns of {trainer_name}'s trainers"

    tokens = f"{numbers.plural(account.tokens, 'token')} of text"
    origin = "written by tokenlake"
    formats = dataset.import_formats(manifest)
    if formats:
        # Imported ids were not made from text that this build has read.
        tokens = numbers.plural(account.tokens, "token")
        origin = f"imported by tokenlake from files of another tool ({formats})"
    content = f"{numbers.plural(account.documents, row_noun)} with {tokens}"
    if rows:
        content += f" in {rows}"
    return f"{subject}, {origin}: {content}; {dataset.stored(manifest)}.\n"


def _columns(manifest: Manifest) -> str:
    """Return a line for each column of the data files."""
    if manifest.preference is not None:
        lines = _preference_columns(*manifest.preference)
        return lines + _further(manifest) + _PLACE_LINES
    if not manifest.width:
        ids_line = "- `input_ids`: the document's token ids (int32).\n"
        return ids_line + _further(manifest) + _PLACE_LINES
    length = numbers.count(manifest.width)
    return (
        f"- `input_ids`: exactly {length} token ids (int32).\n"
        "- `segment_lengths`: how many ids each piece of a document takes, in order; what is left is padding.\n"
        "- `documents`: for the same pieces, `file` (the id of an input file; the table is in `manifest.json`),\n"
        "  `position` (row number or byte offset in it) and `start` (the piece's first token within its document).\n"
    )


def _preference_columns(method: str, trainer: str) -> str:
    """Return a line for each column of preference data.

    Args:
        method: Training method, such as ``dpo``.
        trainer: ``trl`` or ``easydel``, whose column names the data has.
    """
    lines: list[str] = []
    for column in columns_for(method, trainer):
        # A column covers several parts (prompt and answer); labels are those of the
        # last part, because the ids before it do not count toward the loss.
        parts = " and ".join(column.parts)
        last_part = ""
        if column.parts:
            last_part = column.parts[-1]
        explanations = {
            "ids": f"token ids (int32) of {parts}",
            "mask": f"a 1 (int8) for each of them of {parts}",
            "labels": f"token ids of {last_part}, {IGNORED} for the prompt's (int32)",
            "label": "whether the answer is good (bool)",
            "text": "the prompt as text",
        }
        lines.append(f"- `{column.name}`: {explanations[column.holds]}.\n")
    return "".join(lines)


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
    """Return the section about the sources; for a mixture, with its recipe."""
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
    """Return a table as Markdown without a title: the card has headings of its own."""
    return to_markdown(Table(table.columns, table.rows))


def recipe(manifest: Manifest, record: MixtureRecord) -> str:
    """Return a configuration that makes the same rows again from the same parents.

    It is YAML. Values are written as JSON, which is valid YAML for any text.
    """
    # The parents are named with their versions: the newest ones may have other rows.
    lines = [f"name: {manifest.dataset}", "datasets:"]
    for source_name, source in record.sources.items():
        lines.append(
            f"- {{name: {json.dumps(source_name)}, dataset: {source.dataset}@v{source.version}, "
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
        # Several shares give the same number of rows: the middle one is written, which
        # no rounding moves to another number.
        shares: dict[str, float] = {}
        for source_name, rows in order.kept.items():
            shares[source_name] = (rows + 0.5) / record.sources[source_name].rows
        lines.append(f"  max_fraction: {json.dumps(shares)}")
    lines.append("  weight_schedule:")
    for step, weights in points_of(record):
        lines.append(f"  - {{step: {step}, weights: {json.dumps(dict(weights))}}}")
    lines.append(f"  weight_schedule_type: {order.interpolation}")
    keys = ("step_rows", "block_size", "seed", "lanes", "batch_size")
    for key in keys:
        lines.append(f"  {key}: {getattr(order, key)}")
    # The first version of the order is not written, as in a manifest: cards of mixtures
    # from before the second version keep their bytes.
    if order.version != FIRST_ORDER:
        lines.append(f"  order: {order.version}")
    lines += [f"  stop_strategy: {order.stop}", f"  total_rows: {order.rows}"]
    return lines


def _pack_section(pack: Mapping[str, Any]) -> list[str]:
    """Return the lines of the seed and of the section `pack`."""
    lines: list[str] = []
    # The seed shuffles the packed rows; a build that did not shuffle has none.
    seed = pack.get("shuffle_seed")
    if seed is not None:
        lines.append(f"seed: {seed}")
    lines += ["pack:", "  enabled: true"]
    # The order of keys is fixed here: the order in a manifest that was read differs
    # from that at the first writing.
    listed_keys = [key for key in _PACK if key in pack]
    further_keys = sorted(pack.keys() - {*_PACK, "shuffle_seed"})
    for key in [*listed_keys, *further_keys]:
        if pack[key] is not None:
            lines.append(f"  {key}: {json.dumps(pack[key])}")
    lines.append(f"  shuffle_packed: {json.dumps(seed is not None)}")
    return lines
