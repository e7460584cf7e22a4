"""A signed statement of what a checkpoint was trained on, and its check: everything in it is computed again.

::

    statement = prove_state(state, open_dataset, key={"env": "PROOF_KEY"}, takedown=Takedown.read(path))
    check_statement(statement, public_key, open_dataset, takedown=Takedown.read(path))

A statement is canonical JSON, whose signature is that of the same JSON without the member `signature`. It holds the
loader's state, from which all the rest follows with the datasets at hand: hashes of manifests, rows, ids and epochs of
each dataset and source, what was delivered of a takedown list, what evaluation sets have in common with what was read.
`deliveries` are there for verifiers that know nothing of mixtures: what each lane gave of each dataset, of which
:mod:`tokenlake.mixing.shuffle` says which rows these are.

What some steps delivered is found without going through them. A lane gives the rows of a dataset epoch by epoch, so
that how many rows it gave before a step says which: whole epochs, and the first places of one more. Of these, whole
windows need no permutation (:meth:`EpochOrder.taken`). What is added up takes as long as the row groups of a dataset
are many, whatever the number of steps.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, final

import numpy as np

from tokenlake.arrays import Int64
from tokenlake.errors import ConfigError, IntegrityError
from tokenlake.fingerprint import canonical_json
from tokenlake.loader.buckets import BucketSteps
from tokenlake.loader.dataset import Dataset
from tokenlake.loader.mixture import Mixture
from tokenlake.loader.plan import BatchPlan
from tokenlake.loader.state import Opener, restored
from tokenlake.mixing.shuffle import EpochOrder, StoredOrder
from tokenlake.proof.rows import METHOD, EvaluationSet, RowContents, Takedown, overlap_of
from tokenlake.proof.signature import private_key, signed, verified

FORMAT: Final = 1
NGRAM: Final = 13
"""Ids of an n-gram by default: what GPT-3's decontamination used (Brown et al. 2020, appendix C)."""
State = Mapping[str, Any]
Statement = dict[str, Any]


def prove_state(
    state: State,
    open_dataset: Opener,
    key: str | os.PathLike[str] | dict[str, str],
    *,
    first_step: int = 0,
    takedown: Takedown | None = None,
    evaluation: Mapping[str, EvaluationSet] | None = None,
    ngram: int = NGRAM,
) -> bytes:
    """Return a signed statement of the steps from one to the state's.

    Args:
        state: what `get_state()` of a loader returned.
        open_dataset: opens a split of a version by their names.
        key: see :func:`tokenlake.proof.signature.private_key`.
        first_step: the first step that is counted.
        takedown: documents; the statement says when any of them was delivered.
        evaluation: sets by name, whose n-grams are looked for in all rows that the steps read.
        ngram: ids of an n-gram.

    Raises:
        ConfigError: it is no state, or of other data; or an argument is not what is allowed.
        IntegrityError: a file is missing or damaged.
        MissingExtraError: the package that signs is not installed.
    """
    secret, public = private_key(key)
    claims = claims_of(state, open_dataset, first_step, takedown, evaluation or {}, ngram)
    claims["public_key"] = public.hex()
    return canonical_json(claims | {"signature": signed(canonical_json(claims), secret).hex()}) + b"\n"


def check_statement(
    statement: bytes,
    public_key: bytes,
    open_dataset: Opener,
    *,
    takedown: Takedown | None = None,
    evaluation: Mapping[str, EvaluationSet] | None = None,
    state: State | None = None,
) -> Statement:
    """Check the signature of a statement, and compute again all that it says.

    Args:
        statement: what :func:`prove_state` returned.
        public_key: of whoever is to have signed it, 32 bytes.
        open_dataset: as of :func:`prove_state`.
        takedown, evaluation: what the statement speaks of.
        state: of a checkpoint that it must be of.

    Returns:
        the statement.

    Raises:
        IntegrityError: it is not signed by this key, or something in it does not hold; says what.
        ConfigError: a list or a set that it speaks of is not given, or is another one.
    """
    found = read_statement(statement, public_key)
    if state is not None and canonical_json(state) != canonical_json(found["state"]):
        raise IntegrityError("the statement is of another state than the checkpoint's")
    stated, given = (found["takedown"] or {}).get("sha256"), takedown and takedown.sha256
    if stated != given:
        raise ConfigError(
            f"takedown: the statement speaks of {'no list' if stated is None else f'the list with sha256 {stated}'}, "
            f"got {'none' if given is None else given}; give the same list"
        )
    overlap: dict[str, Any] = found["overlap"] or {"n": NGRAM, "sets": {}}
    sets = {name: each["identity"] for name, each in overlap["sets"].items()}
    ours = {name: each.identity for name, each in (evaluation or {}).items()}
    if sets != ours:
        raise ConfigError(
            f"evaluation: the statement speaks of {sets or 'no sets'}, got {ours or 'none'}; give the same"
        )
    first, n = found["steps"][0], overlap["n"]
    claims = claims_of(found["state"], open_dataset, first, takedown, evaluation or {}, n)
    wrong: list[str] = []
    for name, value in claims.items():
        said, real = canonical_json(found[name]).decode(), canonical_json(value).decode()
        if said != real:
            wrong.append(f"{name} is {said[:200]} there and {real[:200]} by the datasets")
    if wrong:
        raise IntegrityError(f"the statement does not hold: {'; '.join(wrong)}")
    return found


def read_statement(statement: bytes, public_key: bytes) -> Statement:
    """Read a statement whose signature is that of a key; IntegrityError where it is none."""
    try:
        found = json.loads(statement)
        signature, stated = bytes.fromhex(found["signature"]), found["public_key"]
        whole = canonical_json(found | {"signature": signature.hex()}) + b"\n" == statement
    except (ValueError, TypeError, KeyError, RecursionError, ConfigError) as error:
        raise IntegrityError(f"this is no statement: {error!r}") from error
    if not whole or set(found) != _MEMBERS or found["format"] != FORMAT:
        raise IntegrityError(
            f"this is no statement of format {FORMAT}, or it was written again in another form; expected the very "
            "bytes that `tokenlake prove` wrote"
        )
    if stated != public_key.hex():
        raise IntegrityError(f"the statement is signed by the key {stated}; expected {public_key.hex()}")
    message = canonical_json({name: value for name, value in found.items() if name != "signature"})
    if not verified(public_key, message, signature):
        raise IntegrityError(
            "the signature is not that of this statement: it was changed after it was signed"
        )
    return found


_MEMBERS: Final = {
    "format", "state", "steps", "datasets", "deliveries", "sources", "takedown", "overlap", "public_key", "signature"
}  # fmt: skip


def claims_of(
    state: State,
    open_dataset: Opener,
    first_step: int,
    takedown: Takedown | None,
    evaluation: Mapping[str, EvaluationSet],
    ngram: int,
) -> Statement:
    """Return what a statement says, but its key and its signature; arguments and errors as of :func:`prove_state`."""
    plan, place = restored(state, open_dataset)
    deliveries, names = deliveries_of(plan, first_step, place.step), list(plan.datasets)
    contents = [RowContents.of(dataset, takedown) for dataset in plan.datasets.values()]
    datasets, sources = dict[str, Any](), dict[str, Any]()
    for number, (name, found) in enumerate(plan.datasets.items()):
        own = {"name": found.name, "manifest": found.manifest.sha256}
        datasets[name] = own | {"kind": found.kind, "rows": len(found)}
        # Ids are those that are stored, before a loader cuts rows.
        mine = [each for each in deliveries if each.source == number]
        rows, of = sum(each.rows for each in mine), plan.sources[number].rows
        sums = contents[number].sums
        tokens = {source: sum(each.total(before) for each in mine) for source, before in sums.items()}
        told = {"rows": rows, "repetitions": {"whole": rows // of, "rest": rows % of, "of": of}}
        sources[name] = told | {"tokens": sum(tokens.values()), "tokens_by_source": tokens}
    overlap = None
    if evaluation:
        times = [np.zeros(source.rows, np.int64) for source in plan.sources]
        for each in deliveries:
            times[each.source] += each.times()
        found = overlap_of(evaluation, list(zip(plan.datasets.values(), times, strict=True)), ngram)
        read = sum(int((each > 0).sum()) for each in times)
        overlap = {"n": ngram, "method": METHOD, "rows": read, "sets": found}
    return {
        "format": FORMAT,
        "state": json.loads(canonical_json(state)),
        "steps": [first_step, place.step],
        "datasets": datasets,
        "deliveries": [each.to_json(names) for each in deliveries],
        "sources": sources,
        "takedown": None
        if takedown is None
        else _taken_down(plan, deliveries, first_step, place.step, takedown, contents),
        "overlap": overlap,
    }


def _taken_down(
    plan: BatchPlan,
    deliveries: Sequence[Delivery],
    first: int,
    end: int,
    takedown: Takedown,
    contents: Sequence[RowContents],
) -> dict[str, Any]:
    """When rows with a piece of the listed documents were delivered, and since when none was."""
    steps: list[tuple[int, int]] = []
    for each in deliveries:
        rows = plan.sources[each.source].group_of(contents[each.source].marked)
        if found := steps_of_rows(plan, each, *rows):
            steps.append(found)
    clear = first if not steps else max(last for _, last in steps) + 1
    return {
        "sha256": takedown.sha256,
        "documents": len(takedown.documents),
        "stored": len(frozenset().union(*(each.stored for each in contents))),
        "rows": sum(len(each.marked) for each in contents),
        "first_step": min(first for first, _ in steps) if steps else None,
        "last_step": clear - 1 if steps else None,
        "none_from": clear,
        "deliveries": [each.to_json([*plan.datasets]) for each in deliveries_of(plan, clear, end)],
    }


@final
@dataclass(frozen=True, eq=False, slots=True)
class Delivery:
    """What some steps took of one dataset, lane by lane.

    Attributes:
        source: number of the dataset in the plan.
        order: of its rows.
        passes: of the plan, in which lanes begin to count.
        epoch: of the dataset, likewise.
        begin, end: rows that each lane gave since then, before the steps and after them, int64[lanes] both.
    """

    source: int
    order: EpochOrder | StoredOrder
    passes: int
    epoch: int
    begin: Int64
    end: Int64

    @property
    def rows(self) -> int:
        """How many were delivered."""
        return int((self.end - self.begin).sum())

    def total(self, sums: Int64) -> int:
        """Add up what each row weighs, as often as it was delivered.

        Args:
            sums: what the rows before each row weigh, and what all weigh, int64[rows + 1].
        """
        found = 0
        for counts, sign in ((self.end, 1), (self.begin, -1)):
            whole, parts = self._epochs(counts)
            found += sign * whole * int(sums[-1])
            for begin, end in parts:
                found += sign * int((sums[end] - sums[begin]).sum())
        return found

    def times(self) -> Int64:
        """Return how often each of the dataset's rows was delivered, int64[rows]."""
        changes = np.zeros(self.order.rows + 1, np.int64)
        for counts, sign in ((self.end, 1), (self.begin, -1)):
            whole, parts = self._epochs(counts)
            changes[0] += sign * whole
            for begin, end in parts:
                np.add.at(changes, begin, sign)
                np.add.at(changes, end, -sign)
        return np.cumsum(changes[:-1])

    def seen(self, group: Int64, row: Int64) -> Int64:
        """Return which of some rows, int64[n] both, are delivered in these steps, in no order.

        Returns:
            of each delivery the number in its lane, the epoch, and the index among the rows, int64[3, m].
        """
        each, found = self.order.lengths, [np.empty((3, 0), np.int64)]
        lanes = zip(self.begin.tolist(), self.end.tolist(), each.tolist(), strict=True)
        spans = [range(begin // rows, -(-end // rows)) for begin, end, rows in lanes if begin < end]
        for epoch in sorted(set[int]().union(*spans)):
            lane, place = self.order.place_of(self.epoch + epoch, group, row)
            number = epoch * each[lane] + place
            there = np.flatnonzero((number >= self.begin[lane]) & (number < self.end[lane]))
            found.append(np.stack([number[there], np.full(len(there), self.epoch + epoch), there]))
        return np.concatenate(found, axis=1)

    def to_json(self, names: Sequence[str]) -> dict[str, Any]:
        """Return what a verifier computes the rows from."""
        seed = self.order.seed if isinstance(self.order, EpochOrder) else None
        counts = {"begin": self.begin.tolist(), "end": self.end.tolist()}
        return {"source": names[self.source], "seed": seed, "epoch": self.epoch, **counts}

    def _epochs(self, counts: Int64) -> tuple[int, Iterator[tuple[Int64, Int64]]]:
        """Return how many epochs all lanes gave whole, and the stored rows, as ranges, of each that some did not."""
        each = self.order.lengths
        there, of = counts[each > 0], each[each > 0]  # lanes without rows have no say
        whole = int((there // of).min(initial=np.iinfo(np.int64).max))
        last = int((-(-there // of)).max(initial=0))
        parts = (
            self.order.taken(self.epoch + epoch, np.clip(counts - epoch * each, 0, each))
            for epoch in range(whole, last)
        )
        return whole, parts


def deliveries_of(plan: BatchPlan, first: int, end: int) -> list[Delivery]:
    """Return what the steps from `first` to before `end` took of the datasets of a plan.

    Raises:
        ConfigError: there are no such steps, batches are made by length, or sources are shortened.
    """
    if not 0 <= first <= end:
        raise ConfigError(
            f"steps {first} to {end}: expected a first step from 0 on, and an end that is not before it"
        )
    if isinstance(plan.steps, BucketSteps):
        raise ConfigError(
            "the loader puts rows into buckets by their length, whose order a statement does not count; "
            "pad to `multiple` or `length` instead"
        )
    orders = plan.stream(0).orders
    for name, order, stored in zip(plan.datasets, orders, plan.sources, strict=True):
        if order.rows != stored.rows:
            raise ConfigError(
                f"the mixture uses {order.rows:,} of the {stored.rows:,} rows of {name} (max_fraction, budgets), and a "
                "statement counts whole sources; expected a mixture that shortens none"
            )
    passes = range(plan.steps.position(first).passes, plan.steps.position(end).passes + 1)
    if isinstance(plan.data, Dataset) and (len(passes) == 1 or not plan.options.drop_last):
        passes = passes[:1]  # they leave out nothing, so that they follow each other in the epochs, too
        return list(_since(plan, passes[0], first, end))
    edges = [first, *(plan.steps.begin(number) for number in passes[1:]), end]
    return [
        each
        for number, span in zip(passes, pairwise(edges), strict=True)
        for each in _since(plan, number, *span)
    ]


def steps_of_rows(plan: BatchPlan, delivery: Delivery, group: Int64, row: Int64) -> tuple[int, int] | None:
    """Return the first and the last step of a delivery that delivers any of some rows, int64[n] both; None: none."""
    first = _edge(plan, delivery, group, row, last=False)
    last = _edge(plan, delivery, group, row, last=True)
    return None if first is None or last is None else (first, last)


def _edge(plan: BatchPlan, delivery: Delivery, group: Int64, row: Int64, *, last: bool) -> int | None:
    """Return the first step that delivers any of the rows, or the last one; None: none does."""
    each, found = delivery.order.lengths, None
    if not len(row):
        return None
    # Every row comes in every epoch: two of each lane nearly always hold one of them, and tell where to look further.
    if last:
        part = replace(delivery, begin=np.maximum(delivery.begin, delivery.end - 2 * each))
    else:
        part = replace(delivery, end=np.minimum(delivery.end, delivery.begin + 2 * each))
    for some in (part, delivery):
        # Lanes keep pace, so that the highest number is nearly always the last; what may come later is looked at again.
        while (seen := some.seen(group, row)).shape[1]:
            chosen = np.argmax(seen[0]) if last else np.argmin(seen[0])
            _, epoch, index = seen[:, chosen].tolist()
            passes = delivery.passes
            if not isinstance(plan.data, Mixture) and plan.epochs is not None:
                passes = epoch // plan.epochs
            (at,) = plan.places(passes, delivery.source, epoch, group[[index]], row[[index]])
            assert at is not None
            found = at[0].step
            counts = _given(plan, delivery.passes, found + last)[delivery.source]
            some = replace(delivery, begin=counts) if last else replace(delivery, end=counts)
        if found is not None:
            break
    return found


def _since(plan: BatchPlan, passes: int, first: int, end: int) -> Iterator[Delivery]:
    """Yield what some steps took of each dataset, counted from a pass on."""
    if first == end:
        return
    epoch = 0 if isinstance(plan.data, Mixture) else passes * (plan.epochs or 0)
    for source, counts in enumerate(zip(_given(plan, passes, first), _given(plan, passes, end), strict=True)):
        yield Delivery(source, plan.stream(passes).orders[source], passes, epoch, *counts)


def _given(plan: BatchPlan, since: int, step: int) -> Int64:
    """Return how many rows of each dataset each lane gave since a pass began, before a step, int64[datasets, lanes]."""
    if step == plan.steps.begin(since):
        stream = plan.stream(since)
        return np.zeros((len(stream.orders), stream.layout.lanes), np.int64)
    batch = plan.batch(step - 1)
    stream = plan.stream(batch.passes)
    passed = [(batch.passes - since) * (plan.epochs or 0) * order.lengths for order in stream.orders]
    return stream.drawn(batch.start, batch.size, batch.rows) + passed
