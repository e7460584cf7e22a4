"""What a plan will come to, from a small sample of its inputs.

A few places of each source are read and tokenized by the reference; their tokens and documents per input
byte are taken for the whole. Nothing is written, and the answer is the same every time.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.build.plan import Plan
from tokenlake.build.recipe import Recipe, open_recipe, special_mode
from tokenlake.config.resolve import ResolvedSource
from tokenlake.sources.ranges import FileRange
from tokenlake.tokenizers import Encoder

_LEAST_PLACES, _MOST_PLACES = 8, 64  # where a source is looked at
_READ_BYTES: Final = 64 << 20  # of input that may be read for it
_SAMPLE_BYTES: Final = 1 << 20  # of text that is tokenized
_LEAST_BYTES: Final = 16 << 10  # and at one place
_MOST_BATCHES: Final = 4  # read at one place
# zstd on real token ids: 5 to 6 bits each, provenance included
_STORED_BYTES_PER_TOKEN: Final = 0.7


@final
@dataclass(frozen=True, slots=True)
class Estimate:
    """Expected size of a source or of a whole version; all but `files` are guesses from a sample.

    Attributes:
        documents, tokens: of the text, BOS and EOS included.
        sequences: packed rows, or documents where nothing is packed.
        output_bytes: of all shards.
        files: shards: with `num_shards` exactly so many, else at most: a unit writes one for each split, and more
            past `max_shard_size`.
    """

    documents: int
    tokens: int
    sequences: int
    output_bytes: int
    files: int

    def to_json(self) -> dict[str, int]:
        """Return the JSON-able form."""
        return asdict(self)


def estimate(plan: Plan) -> dict[str, Estimate]:
    """Return an estimate for each source, in plan order.

    Raises:
        SourceError: an input cannot be read.
        TokenizerError: a tokenizer cannot be run.
    """
    return {source.name: _of_source(plan, source) for source in plan.build.sources}


def total(parts: dict[str, Estimate]) -> Estimate:
    """Sum the estimates of all sources."""
    fields: list[dict[str, int]] = [part.to_json() for part in parts.values()]
    names = ("documents", "tokens", "sequences", "output_bytes", "files")
    return Estimate(**{name: sum(part[name] for part in fields) for name in names})


def _of_source(plan: Plan, source: ResolvedSource) -> Estimate:
    ranges = [part for unit in plan.units if unit.source == source.name for part in unit.ranges]
    units = [unit for unit in plan.units if unit.source == source.name]
    documents = tokens = 0.0
    for alike in _alike(ranges):
        sample = _sample(plan, source, alike)
        documents += sample.documents_per_range * len(alike)
        tokens += sample.tokens_per_byte * sum(part.weight for part in alike)
    pack = plan.build.pack
    rows = math.ceil(tokens / pack.seq_length) if pack else round(documents)
    output = math.ceil(tokens * _STORED_BYTES_PER_TOKEN)
    files = sum(unit.files or 1 for unit in units) * len(source.splits)
    if any(unit.files is None for unit in units):
        files += output // plan.build.max_shard_size
    return Estimate(round(documents), round(tokens), rows, output, files)


def _alike(ranges: list[FileRange]) -> list[list[FileRange]]:
    """Ranges by format and compression: a byte of one is not worth a byte of another."""
    groups: dict[tuple[str, str | None], list[FileRange]] = {}
    for part in ranges:
        groups.setdefault((part.file.format, part.file.compression), []).append(part)
    return list(groups.values())


@final
@dataclass(frozen=True, slots=True)
class _Sample:
    """What a few ranges hold."""

    documents_per_range: float = 0.0
    tokens_per_byte: float = 0.0


def _sample(plan: Plan, source: ResolvedSource, ranges: list[FileRange]) -> _Sample:
    """Read the beginnings of a few ranges, tokenize a part of them."""
    recipe = open_recipe(replace(source, on_bad_record="quarantine"), plan.tokenizers[source.name].files)
    places = [(part, _beginning_of(part, recipe)) for part in _spread(ranges)]
    read = sum(place.bytes_read for _, place in places)
    texts = [text for _, place in places for text in place.texts if len(text)]
    if not read or not texts:
        return _Sample()
    # a range that is longer than its beginning holds more of the same
    documents = sum(place.documents * part.weight / max(place.bytes_read, 1) for part, place in places)
    return _Sample(documents / len(places), _count_ids(plan, source, recipe, texts) / read)


@final
@dataclass(frozen=True, slots=True)
class _Place:
    """The beginning of a range: its texts and how much of the range they are."""

    texts: list[pa.LargeStringArray]
    bytes_read: int

    @property
    def documents(self) -> int:
        return sum(map(len, self.texts))


def _beginning_of(part: FileRange, recipe: Recipe) -> _Place:
    """Read batches until one says how much input it took: some formats read ahead, or begin with what is left out."""
    texts: list[pa.LargeStringArray] = []
    read = 0
    for batch in islice(recipe.read(part), _MOST_BATCHES):
        texts.append(batch.documents.text)
        read += batch.bytes_read
        if read and len(batch.documents):
            break
    return _Place(texts, read)


def _count_ids(plan: Plan, source: ResolvedSource, recipe: Recipe, texts: list[pa.LargeStringArray]) -> float:
    """About how many ids the texts come to: a part of each is encoded, the rest counted by its bytes."""
    planned, options = plan.tokenizers[source.name], source.tokenizer
    encoder = Encoder(
        planned.files,
        engine="tokenizers",
        special_tokens_in_text=special_mode(options, recipe),
        add_special_tokens=options.add_special_tokens,
    )
    share = max(_LEAST_BYTES, _SAMPLE_BYTES // len(texts))
    beginnings = pa.concat_arrays([_beginning(text, share) for text in texts])
    encoded = len(encoder.encode(beginnings).ids)
    per_byte = encoded / max(1, pc.sum(pc.binary_length(beginnings)).as_py())
    lengths = np.concatenate([np.asarray(pc.binary_length(text)) for text in texts]) * per_byte
    lengths += (
        len(encoder.prefix) + len(encoder.suffix) + (planned.append_eos and plan.build.pack is not None)
    )
    truncated = options.long_documents == "truncate"
    return float((np.minimum(lengths, options.max_length) if truncated else lengths).sum())


def _spread(ranges: list[FileRange]) -> list[FileRange]:
    """A few ranges, evenly over all of them: the smaller they are, the more."""
    mean = sum(part.weight for part in ranges) / len(ranges)
    places = min(_MOST_PLACES, max(_LEAST_PLACES, int(_READ_BYTES / max(mean, 1))))
    return ranges[:: math.ceil(len(ranges) / places)]


def _beginning(text: pa.LargeStringArray, most: int) -> pa.LargeStringArray:
    """The first texts up to a size, each cut to it."""
    sizes = np.cumsum(np.asarray(pc.binary_length(text)))
    count = max(1, int(np.searchsorted(sizes, most, side="right")))
    return pc.utf8_slice_codeunits(text.slice(0, count), 0, most)
