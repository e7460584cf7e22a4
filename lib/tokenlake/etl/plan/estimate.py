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

from tokenlake.config.resolved import ResolvedSource, ResolvedTokenizer
from tokenlake.etl.job import REFERENCE, UnitJob
from tokenlake.etl.plan.plan import Plan, TextUnit
from tokenlake.etl.unit.documents import Prepared, Recipe, TextDocuments
from tokenlake.etl.unit.text import TextBuild
from tokenlake.preference_columns import text_weights
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
    documents = tokens = rows = long = dropped = stored = 0.0
    for kind, (count, weight) in _kinds(units).items():
        sample = _sample(plan, source, _spread(units, kind, count, weight))
        some = sample.documents * count
        documents += some
        rows += some * sample.rows
        long += some * sample.long
        tokens += sample.tokens * weight
        dropped += sample.dropped * weight
        stored += sample.tokens * weight * sample.stored
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


@final
@dataclass(frozen=True, slots=True)
class _Sample:
    """What a few ranges hold.

    Attributes:
        tokens, dropped: ids that are written and dropped, per byte of input.
        rows, long: rows that are written and long documents, per document.
        documents: of a range.
        stored: bytes on disk per id that is written.
    """

    tokens: float = 0.0
    dropped: float = 0.0
    rows: float = 0.0
    long: float = 0.0
    documents: float = 0.0
    stored: float = 0.0


def _sample(plan: Plan, source: ResolvedSource, ranges: list[FileRange]) -> _Sample:
    """Read the beginnings of ranges, tokenize a part of them."""
    recipe = Recipe(replace(source, on_bad_record="quarantine"), plan.tokenizers[source.name].files)
    places = [(part, _beginning_of(part, recipe)) for part in ranges]
    read = sum(taken for _, (_, taken, _) in places)
    found = [batch for _, (batches, _, _) in places for batch in batches if len(batch.documents)]
    if not read or not found:
        return _Sample()
    # a range that is longer than its beginning holds more of the same
    documents = sum(count * part.weight / max(taken, 1) for part, (_, taken, count) in places)
    encoder = Encoder(
        plan.tokenizers[source.name].files,
        engine=REFERENCE,
        special_tokens_in_text=recipe.special_tokens_in_text,
        add_special_tokens=source.tokenizer.add_special_tokens,
    )
    built = _built(plan, source, recipe, encoder, found)
    tokens = sum(part.tokens for part in built.parts)
    stored = sum(part.bytes for part in built.parts) / tokens if tokens else 0.0
    counted = _count_ids(plan, source, encoder, built, found, read)
    return replace(counted, documents=documents / len(places), stored=stored)


def _beginning_of(part: FileRange, recipe: Recipe) -> tuple[list[Prepared], int, int]:
    """Return the first batches of a range, the input bytes that they took, and how many documents they have.

    They are read until one says how much input it took: some formats read ahead, or begin with what is left out.
    """
    batches: list[Prepared] = []
    read = documents = 0
    for batch in islice(recipe.read(part), _MOST_BATCHES):
        batches.append(batch)
        read += batch.bytes_read
        documents += len(batch.documents)
        if read and len(batch.documents):
            break
    return batches, read, documents


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


def _count_ids(
    plan: Plan,
    source: ResolvedSource,
    encoder: Encoder,
    built: UnitRecord,
    found: Sequence[Prepared],
    read: int,
) -> _Sample:
    """About how many ids documents come to: a part of them is built, the rest counted by its bytes.

    Args:
        read: bytes of input that the documents took.
    """
    planned, options = plan.tokenizers[source.name], source.tokenizer
    per_byte = built.account.tokens / max(1, built.account.text_bytes)
    lengths: Floats = np.concatenate([batch.documents.text_sizes for batch in found]) * np.float64(per_byte)
    if source.texts.preference is not None:  # each text with its prompt; few special tokens
        weights = np.array(text_weights(source.texts.preference.method), np.float64)
        return _counted(lengths.reshape(-1, len(weights)), weights, options, 0, 1, read)
    around = len(encoder.prefix) + len(encoder.suffix)
    added = around + (planned.append_eos and plan.build.pack is not None)
    return _counted(lengths[:, None], np.ones(1), options, around, added, read)


def _counted(
    lengths: Floats, weights: Floats, options: ResolvedTokenizer, around: int, added: int, read: int
) -> _Sample:
    """What the policy makes of documents.

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
    return _Sample(
        tokens=max(0.0, float((kept @ weights + pieces * added).sum())) / read,
        dropped=max(0.0, float(((lengths - kept) @ weights).sum())) / read,
        rows=float(pieces.mean()),
        long=float(long.mean()),
    )


def _beginning(documents: TextDocuments, most: int) -> TextDocuments:
    """The first documents up to a size; a plain text is cut to it."""
    sizes = np.cumsum(documents.text_sizes.reshape(len(documents), -1).sum(axis=1))
    some = documents.slice(0, max(1, int(np.searchsorted(sizes, most, side="right"))))
    return some if some.spans is not None else replace(some, text=pc.utf8_slice_codeunits(some.text, 0, most))
