"""The expected size of a plan's output, from a sample of its inputs.

A few places of each source are read (see :mod:`tokenlake.etl.plan.sampling`), and what they hold is built as a unit
would build it, by the reference tokenizer and in a temporary folder. Documents and text per byte of input come from all
that was read, tokens per byte of text and bytes on disk per token from the part of it that is built. Nothing is written
to the store, and the result is the same every time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from tempfile import TemporaryDirectory
from typing import Final, cast, final

import numpy as np
import pyarrow.compute as pc

from tokenlake.base.columns import text_weights
from tokenlake.config.resolved import ResolvedSource, ResolvedTokenizer
from tokenlake.etl.job import REFERENCE, UnitJob
from tokenlake.etl.plan.plan import Plan, TextUnit
from tokenlake.etl.plan.sampling import (
    RANGE_WIDTH,
    Floats,
    PlaceSample,
    Stratum,
    read_sample,
    standard_errors,
    strata_of,
    totals_of_places,
)
from tokenlake.etl.sources.inputs import FileRange
from tokenlake.etl.tokenizers.encoder import Encoder
from tokenlake.etl.unit.documents import Prepared, Recipe
from tokenlake.etl.unit.text import TextBuild
from tokenlake.etl.unit.text_documents import ID_BYTES, TextDocuments
from tokenlake.runtime.store.address import StoreAddress, open_store
from tokenlake.runtime.store.layout import Layout
from tokenlake.runtime.store.ledger import UnitRecord

_SAMPLE_BYTES: Final = 1 << 20  # of text that is built, in all
_LEAST_BYTES: Final = 16 << 10  # of text that is built, of one batch
_RATE_BYTES: Final = 8 << 10  # of text of one place that is encoded to compare it with the other places

# Columns of the quantities that are estimated.
_DOCUMENTS, _ROWS, _LONG, _TOKENS, _DROPPED, _STORED = range(6)


@final
@dataclass(frozen=True, slots=True)
class Estimate:
    """Expected size of a source or of a whole version.

    Each margin is half of a range that holds the true number about 19 times of 20, as far as a sample can say: a kind
    of text that no sampled place holds is not counted. It is None where a single place was read.

    Attributes:
        documents: Number of documents.
        tokens: Number of tokens that are written, BOS and EOS included.
        sequences: Number of packed rows, or of documents where nothing is packed.
        output_bytes: Size of all shards.
        files: Number of shards. Exact with `num_shards`, otherwise an upper bound: a unit writes one for each split,
            and more past `max_shard_size`.
        long_documents: Number of documents of more than `max_length` tokens, where these are not kept.
        dropped_tokens: Number of tokens of these documents that are not written.
        documents_margin: Margin of `documents`.
        tokens_margin: Margin of `tokens`.
        output_bytes_margin: Margin of `output_bytes`.
    """

    documents: int
    tokens: int
    sequences: int
    output_bytes: int
    files: int
    long_documents: int = 0
    dropped_tokens: int = 0
    documents_margin: int | None = None
    tokens_margin: int | None = None
    output_bytes_margin: int | None = None

    def to_json(self) -> dict[str, int | None]:
        """Return the JSON-able form."""
        return asdict(self)


def estimate(plan: Plan) -> dict[str, Estimate]:
    """Return an estimate for each source, in plan order.

    Raises:
        SourceError: An input cannot be read.
        TokenizerError: A tokenizer cannot be run.
    """
    return {source.name: _of_source(plan, source) for source in plan.build.sources}


def total(estimates: dict[str, Estimate]) -> Estimate:
    """Return the sum of the estimates of all sources, whose errors are independent of each other."""
    sums: dict[str, int | None] = {}
    for field in fields(Estimate):
        values = [getattr(part, field.name) for part in estimates.values()]
        if not field.name.endswith("_margin"):
            sums[field.name] = sum(values)
        elif None in values:
            sums[field.name] = None
        else:
            sums[field.name] = round(math.hypot(*values))
    return Estimate(**cast("dict[str, int]", sums))


def _of_source(plan: Plan, source: ResolvedSource) -> Estimate:
    """Return the estimate for one source, the sum over the kinds of its files."""
    units = [unit for unit in plan.units if isinstance(unit, TextUnit) and unit.source == source.name]
    totals = np.zeros(6)
    squares = np.zeros(6)  # of the margins
    for stratum in strata_of(units).values():
        kind_totals, kind_margins = _of_stratum(plan, source, stratum)
        totals += kind_totals
        squares += kind_margins**2
    margins = [None if math.isnan(square) else math.ceil(math.sqrt(square)) for square in squares.tolist()]
    documents, rows, long, tokens, dropped, stored = totals.tolist()
    width = plan.build.width
    output = math.ceil(stored)
    files = sum(unit.files or 1 for unit in units) * len(source.split_names)
    if any(unit.files is None for unit in units):
        files += output // plan.build.max_shard_size
    return Estimate(
        documents=round(documents),
        tokens=round(tokens),
        sequences=math.ceil(tokens / width) if width else round(rows),
        output_bytes=output,
        files=files,
        long_documents=round(long),
        dropped_tokens=round(dropped),
        documents_margin=margins[_DOCUMENTS],
        tokens_margin=margins[_TOKENS],
        output_bytes_margin=margins[_STORED],
    )


def _of_stratum(plan: Plan, source: ResolvedSource, stratum: Stratum) -> tuple[Floats, Floats]:
    """Return the totals of a stratum and their margins: documents, rows, long documents, tokens, dropped, bytes.

    1. Read places of the stratum.
    2. Build a part of their documents: tokens per byte of text, and bytes on disk per token.
    3. Encode a little of each place, to see how its tokens per byte differ from those of the others.
    4. Count each place's documents and tokens, with the policy for long documents.
    5. Add the places up where they are the whole, otherwise take the mean of their rates for it.
    """
    planned = plan.tokenizers[source.name]
    recipe = Recipe(replace(source, on_bad_record="quarantine"), planned.files)
    places, is_whole = read_sample(stratum, recipe)
    batches = [batch for place in places for batch in place.batches if len(batch.documents)]
    if not batches:
        return np.zeros(6), np.zeros(6)
    encoder = Encoder(
        planned.files,
        engine=REFERENCE,
        special_tokens_in_text=recipe.special_tokens_in_text,
        add_special_tokens=source.tokenizer.add_special_tokens,
    )
    built = _built(plan, source, recipe, encoder, batches)
    stored_tokens = sum(part.tokens for part in built.parts)
    stored_bytes = sum(part.bytes for part in built.parts)
    bytes_per_token = stored_bytes / stored_tokens if stored_tokens else 0.0
    tokens_per_byte = built.account.tokens / max(1, built.account.text_bytes)
    if source.tokens is not None:
        tokens_per_byte = 1 / ID_BYTES
    densities = _relative_densities(places, encoder)

    quantities = np.zeros((len(places), 6))
    for index, place in enumerate(places):
        if place.documents:
            quantities[index] = _quantities(plan, source, place, encoder, tokens_per_byte * densities[index])
    quantities[:, _STORED] = quantities[:, _TOKENS] * bytes_per_token
    if is_whole:
        # All is counted but the tokens of a text, which come from the part that is built.
        totals = quantities.sum(axis=0)
        margins = np.zeros(6)
        error = standard_errors(densities[:, None])[0]
        margins[[_TOKENS, _STORED]] = RANGE_WIDTH * error * totals[[_TOKENS, _STORED]]
        return totals, margins

    rates = quantities / np.array([[place.bytes_read] for place in places], np.float64)
    windows = np.array([[place.window_bytes] for place in places], np.float64)
    counts = [_DOCUMENTS, _ROWS, _LONG]
    rates[:, counts] = quantities[:, counts] / windows
    totals, margins = totals_of_places(rates, stratum.weight)
    if stratum.records is not None and totals[_DOCUMENTS] > 0:
        # The files state their records: only the share of them that become documents is unknown.
        rows_read = sum(place.rows_read for place in places)
        documents = sum(place.documents for place in places)
        known = stratum.records * documents / max(rows_read, 1)
        totals[counts] *= known / totals[_DOCUMENTS]
        margins[counts] = 0.0
    return totals, margins


def _quantities(
    plan: Plan, source: ResolvedSource, place: PlaceSample, encoder: Encoder, tokens_per_byte: float
) -> Floats:
    """Return the quantities of a place; bytes on disk are left at 0."""
    sizes = [batch.documents.sizes for batch in place.batches if len(batch.documents)]
    lengths: Floats = np.concatenate(sizes) * np.float64(tokens_per_byte)
    options = source.tokenizer
    if source.texts.preference is not None:
        # Each text comes with its prompt; special tokens are few.
        weights = np.array(text_weights(source.texts.preference.method), np.float64)
        counted = _counted(lengths.reshape(-1, len(weights)), weights, options, 0, 1)
    else:
        around = len(encoder.prefix) + len(encoder.suffix)
        has_eos = plan.tokenizers[source.name].append_eos and plan.build.pack is not None
        counted = _counted(lengths[:, None], np.ones(1), options, around, around + has_eos)
    rows, long, tokens, dropped = counted
    return np.array([place.documents, place.documents * rows, place.documents * long, tokens, dropped, 0.0])


def _relative_densities(places: Sequence[PlaceSample], encoder: Encoder) -> Floats:
    """Return the tokens per byte of text at each place, in the mean of all places: 1.1 is a tenth more.

    Ids are as long everywhere. Conversations and prompts count as 1: their tokens cannot be encoded without their
    structure.
    """
    densities = np.ones(len(places))
    for index, place in enumerate(places):
        documents = next((batch.documents for batch in place.batches if len(batch.documents)), None)
        if documents is None:
            continue
        if documents.spans is not None or documents.ids is not None:
            return np.ones(len(places))
        texts = _beginning(documents, _RATE_BYTES)
        densities[index] = len(encoder.encode(texts.text).ids) / max(1, texts.text_bytes)
    mean = densities.mean()
    return densities / mean if mean > 0 else np.ones(len(places))


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
    sizes = np.cumsum(documents.sizes.reshape(len(documents), -1).sum(axis=1))
    some = documents.slice(0, max(1, int(np.searchsorted(sizes, most, side="right"))))
    if some.spans is not None or some.ids is not None:
        return some
    return replace(some, text=pc.utf8_slice_codeunits(some.text, 0, most))
