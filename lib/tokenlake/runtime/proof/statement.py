"""A signed statement of what a checkpoint was trained on, and its check: everything in it is computed again.

::

    statement = prove_state(state, open_dataset, key={"env": "PROOF_KEY"}, takedown=Takedown.read(path))
    check_statement(statement, public_key, open_dataset, takedown=Takedown.read(path))

A statement is canonical JSON, whose signature is that of the same JSON without the member `signature`. It holds the
loader's state, from which all the rest follows with the datasets at hand: hashes of manifests, rows, ids and epochs of
each dataset and source, what was delivered of a takedown list, what evaluation sets have in common with what was read.
`deliveries` are there for verifiers that know nothing of mixtures: what each lane gave of each dataset, of which
:mod:`tokenlake.runtime.mixing.order` says which rows these are.

Signatures are Ed25519 (RFC 8032): they are checked here, in Python alone; the package cryptography makes them. A
private key is a PEM file, or an environment variable that holds the text of one::

    openssl genpkey -algorithm ed25519 -out key.pem
    openssl pkey -in key.pem -pubout -out key.pub.pem

A public key is what the second command writes, or its 64 hexadecimal digits. Checking takes some milliseconds; it works
on public data alone, so that it needs no constant time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from tokenlake.base.fingerprint import canonical_json
from tokenlake.errors import ConfigError, IntegrityError
from tokenlake.runtime.loader.plan import BatchPlan
from tokenlake.runtime.loader.state import Opener, restored
from tokenlake.runtime.proof.delivery import Delivery, deliveries_of, steps_of_rows
from tokenlake.runtime.proof.overlap import METHOD, EvaluationSet, overlap_of
from tokenlake.runtime.proof.rows import RowContents, Takedown
from tokenlake.runtime.proof.signature import private_key, verified

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
        key: see :func:`private_key`.
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
    return canonical_json(claims | {"signature": secret.sign(canonical_json(claims)).hex()}) + b"\n"


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
