"""What a plan will come to, from a small sample of its inputs.

A few places of each source are read, and what they hold is built as a unit would build it, by the reference and in
a temporary folder; their tokens and documents per input byte, and their bytes on disk per token, are taken for the
whole. Nothing is written to the store, and the answer is the same every time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import chain, islice
from tempfile import TemporaryDirectory
from typing import Final, TypeAlias, cast, final

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from tokenlake.columns import text_weights
from tokenlake.config.resolved import ResolvedSource, ResolvedTokenizer
from tokenlake.etl.job import REFERENCE, UnitJob
from tokenlake.etl.plan.plan import Plan, TextUnit
from tokenlake.etl.unit.documents import Prepared, Recipe
from tokenlake.etl.unit.text import TextBuild
from tokenlake.etl.unit.text_documents import TextDocuments
from tokenlake.sources.inputs import FileRange
from tokenlake.store.address import StoreAddress, open_store
from tokenlake.store.layout import Layout
from tokenlake.store.ledger import UnitRecord
from tokenlake.tokenizers.encoder import Encoder

Floats = npt.NDArray[np.float64]

_LEAST_PLACES, _MOST_PLACES = 8, 64  # where a source is looked at
_READ_BYTES: Final = 64 << 20  # of input that may be read for it
_SAMPLE_BYTES: Final = 1 << 20  # of text that is tokenized
_LEAST_BYTES: Final = 16 << 10  # and at one place
_MOST_BATCHES: Final = 4  # read at one place


@final
@dataclass(frozen=True, slots=True)
class Estimate:
    """Expected size of a source or of a whole version; all but `files` are guesses from a sample.

    Attributes:
        documents: of the text.
        tokens: that are written, BOS and EOS included.
        sequences: packed rows, or rows of a document where nothing is packed.
        output_bytes: of all shards.
        files: shards: with `num_shards` exactly so many, else at most: a unit writes one for each split, and more
            past `max_shard_size`.
        long_documents: documents of more than `max_length` tokens, where they are not kept.
        dropped_tokens: tokens that are not written because of that.
    """

    documents: int
    tokens: int
    sequences: int
    output_bytes: int
    files: int
    long_documents: int = 0
    dropped_tokens: int = 0

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


def total(estimates: dict[str, Estimate]) -> Estimate:
    """Sum the estimates of all sources."""
    parts: list[dict[str, int]] = [part.to_json() for part in estimates.values()]
    return Estimate(**{field.name: sum(part[field.name] for part in parts) for field in fields(Estimate)})


def _of_source(plan: Plan, source: ResolvedSource) -> Estimate:
    units = [unit for unit in plan.units if isinstance(unit, TextUnit) and unit.source == source.name]
    sums = np.zeros(6)
    for kind, (count, weight) in _kinds(units).items():
        sums += _sample(plan, source, _spread(units, kind, count, weight), count, weight)
    documents, rows, long, tokens, dropped, stored = sums.tolist()
    width = plan.build.width
    sequences = math.ceil(tokens / width) if width else round(rows)
    output = math.ceil(stored)
    files = sum(unit.files or 1 for unit in units) * len(source.split_names)
    if any(unit.files is None for unit in units):
        files += output // plan.build.max_shard_size
    return Estimate(round(documents), round(tokens), sequences, output, files, round(long), round(dropped))


_Kind: TypeAlias = tuple[str, str | None]


def _kind(part: FileRange) -> _Kind:
    """Format and compression: a byte of one is not worth a byte of another."""
    return part.file.format, part.file.compression


def _kinds(units: Iterable[TextUnit]) -> dict[_Kind, tuple[int, int]]:
    """Return how many ranges there are of each kind, and their weight; there may be millions."""
    counts, weights = Counter[_Kind](), Counter[_Kind]()
    for part in chain.from_iterable(unit.ranges for unit in units):
        counts[_kind(part)] += 1
        weights[_kind(part)] += part.weight
    return {kind: (count, weights[kind]) for kind, count in counts.items()}


def _spread(units: Iterable[TextUnit], kind: _Kind, count: int, weight: int) -> list[FileRange]:
    """A few ranges of a kind, evenly over all of them: the smaller they are, the more."""
    places = min(_MOST_PLACES, max(_LEAST_PLACES, int(_READ_BYTES / max(weight / count, 1))))
    ranges = (part for unit in units for part in unit.ranges if _kind(part) == kind)
    return list(islice(ranges, 0, None, math.ceil(count / places)))


def _sample(plan: Plan, source: ResolvedSource, ranges: list[FileRange], count: int, weight: int) -> Floats:
    """Read the beginnings of ranges, tokenize a part of them, and take it for all of their kind.

    Args:
        count, weight: of all ranges of the kind.

    Returns:
        float64[6]: documents, rows that are written, long documents, ids that are written, ids that are dropped, and
        bytes on disk.
    """
    planned = plan.tokenizers[source.name]
    recipe = Recipe(replace(source, on_bad_record="quarantine"), planned.files)
    found: list[Prepared] = []
    read, documents = 0, 0.0
    for part in ranges:
        batches, took = _beginning_of(part, recipe)
        found += (batch for batch in batches if len(batch.documents))
        read += took
        # A range that is longer than its beginning holds more of the same.
        documents += sum(len(batch.documents) for batch in batches) * part.weight / max(took, 1)
    if not read or not found:
        return np.zeros(6)
    encoder = Encoder(
        planned.files,
        engine=REFERENCE,
        special_tokens_in_text=recipe.special_tokens_in_text,
        add_special_tokens=source.tokenizer.add_special_tokens,
    )
    built = _built(plan, source, recipe, encoder, found)
    ids, size = (sum(getattr(part, name) for part in built.parts) for name in ("tokens", "bytes"))
    # A part of the documents is built, the others' ids are counted by their bytes.
    per_byte = built.account.tokens / max(1, built.account.text_bytes)
    lengths: Floats = np.concatenate([batch.documents.text_sizes for batch in found]) * np.float64(per_byte)
    options = source.tokenizer
    if source.texts.preference is not None:  # each text with its prompt; few special tokens
        weights = np.array(text_weights(source.texts.preference.method), np.float64)
        counted = _counted(lengths.reshape(-1, len(weights)), weights, options, 0, 1)
    else:
        around = len(encoder.prefix) + len(encoder.suffix)
        added = around + (planned.append_eos and plan.build.pack is not None)
        counted = _counted(lengths[:, None], np.ones(1), options, around, added)
    rows, long, tokens, dropped = counted
    documents = documents / len(ranges) * count
    tokens, dropped = tokens / read * weight, dropped / read * weight
    stored = tokens * (size / ids) if ids else 0.0
    return np.array([documents, documents * rows, documents * long, tokens, dropped, stored])


def _beginning_of(part: FileRange, recipe: Recipe) -> tuple[list[Prepared], int]:
    """Return the first batches of a range, and the input bytes that they took.

    They are read until one says how much input it took: some formats read ahead, or begin with what is left out.
    """
    batches: list[Prepared] = []
    read = 0
    for batch in islice(recipe.read(part), _MOST_BATCHES):
        batches.append(batch)
        read += batch.bytes_read
        if read and len(batch.documents):
            break
    return batches, read


def _built(
    plan: Plan, source: ResolvedSource, recipe: Recipe, encoder: Encoder, found: Sequence[Prepared]
) -> UnitRecord:
    """Build a part of what was found, as a unit does."""
    first = next(unit for unit in plan.units if unit.source == source.name)
    layout = Layout(plan.build.name, 1)
    with TemporaryDirectory(prefix="tokenlake-plan-") as folder:
        address = StoreAddress(folder)
        store = open_store(address)
        job = cast("UnitJob", plan.job(first, address, layout, REFERENCE))
        job = replace(
            job,
            source=replace(job.source, on_bad_record="quarantine"),
            ranges=job.ranges[:1],
            excluded={},
            files=None,
            bad_budget=sum(len(batch.documents) for batch in found),
        )
        share = max(_LEAST_BYTES, _SAMPLE_BYTES // len(found))

        def beginnings(_: Sequence[FileRange]) -> Iterator[Prepared]:
            for batch in found:
                some = _beginning(batch.documents, share)
                rows = len(some) if some.extra is None else int((~some.extra).sum())
                yield Prepared(documents=some, files=batch.files, rows_read=rows, bytes_read=0)

        return TextBuild(job, store, encoder, recipe, lambda _: None, beginnings).build()


def _counted(
    lengths: Floats, weights: Floats, options: ResolvedTokenizer, around: int, added: int
) -> tuple[float, float, float, float]:
    """What the policy makes of documents: rows and long documents in the mean, ids that are written and dropped.

    Args:
        lengths: float64[n, texts], tokens of each, without special tokens.
        weights: float64[texts], how often the ids of each count.
        around: special tokens of a document that count for `max_length`.
        added: all ids that are put around a document.
    """
    room = max(1, options.max_length - around)
    longest = lengths.max(axis=1)
    long = longest > room if options.long_documents != "keep" else np.zeros(len(lengths), np.bool_)
    pieces, kept = np.ones(len(lengths)), lengths
    if options.long_documents == "truncate":
        kept = np.minimum(lengths, room)
    elif options.long_documents == "split":
        pieces = np.ceil(np.maximum(longest, 1) / room)
    elif options.long_documents == "drop":
        pieces, kept = pieces * ~long, lengths * ~long[:, None]
    written = float((kept @ weights + pieces * added).sum())
    dropped = float(((lengths - kept) @ weights).sum())
    return float(pieces.mean()), float(long.mean()), max(0.0, written), max(0.0, dropped)


def _beginning(documents: TextDocuments, most: int) -> TextDocuments:
    """The first documents up to a size; a plain text is cut to it."""
    sizes = np.cumsum(documents.text_sizes.reshape(len(documents), -1).sum(axis=1))
    some = documents.slice(0, max(1, int(np.searchsorted(sizes, most, side="right"))))
    return some if some.spans is not None else replace(some, text=pc.utf8_slice_codeunits(some.text, 0, most))
