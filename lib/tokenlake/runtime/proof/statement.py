"""Signed statement of the data that a checkpoint was trained on, and its check.

The check recomputes everything in the statement.

::

    statement = prove_state(state, open_dataset, key={"env": "PROOF_KEY"}, takedown=Takedown.read(path))
    check_statement(statement, public_key, open_dataset, takedown=Takedown.read(path))

A statement is canonical JSON. Its signature is that of the same JSON without the member
`signature`. It holds the loader's state, from which all the rest follows with the
datasets at hand: hashes of manifests; rows, ids and epochs of each dataset and source;
deliveries of a takedown list; n-grams that evaluation sets have in common with the rows
read. `deliveries` is meant for verifiers that know nothing of mixtures: the number of
rows that each lane delivered of each dataset, from which
:mod:`tokenlake.runtime.mixing.order` computes the rows.

Signatures are Ed25519 (RFC 8032). A private key is a PEM file, or an environment
variable that holds the text of one::

    openssl genpkey -algorithm ed25519 -out key.pem
    openssl pkey -in key.pem -pubout -out key.pub.pem

A public key is the file that the second command writes, or its 64 hexadecimal digits.
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
"""Default number of ids of an n-gram, as in GPT-3's decontamination.

Source: Brown et al. 2020, appendix C.
"""
State = Mapping[str, Any]
Statement = dict[str, Any]

# Members of a statement; a further member would not be checked, and is refused.
_MEMBERS: Final = {
    "format", "state", "steps", "datasets", "deliveries", "sources", "takedown", "overlap", "public_key", "signature"
}  # fmt: skip
_SHOWN: Final = 200  # characters of a value in a message


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
    """Return a signed statement of the steps from `first_step` to the step of a state.

    Args:
        state: Return value of `get_state()` of a loader.
        open_dataset: Function that opens a split of a version by their names.
        key: Private key, as :func:`private_key` takes it.
        first_step: First step that is counted.
        takedown: Documents; the statement records when any of them was delivered.
        evaluation: Evaluation sets by name, whose n-grams are searched in all rows that
            the steps read.
        ngram: Number of ids of an n-gram.

    Raises:
        ConfigError: The state is none, or of other data; or an argument is not allowed.
        IntegrityError: A file is missing or damaged.
        MissingExtraError: The package that signs is not installed.
    """
    signing_key, public_bytes = private_key(key)
    claims = claims_of(
        # The public key is signed, too: it cannot be exchanged for another.
        state,
        open_dataset,
        first_step,
        takedown,
        evaluation or {},
        ngram,
    )
    claims["public_key"] = public_bytes.hex()
    signature = signing_key.sign(canonical_json(claims)).hex()
    return canonical_json(claims | {"signature": signature}) + b"\n"


def check_statement(
    statement: bytes,
    public_key: bytes,
    open_dataset: Opener,
    *,
    takedown: Takedown | None = None,
    evaluation: Mapping[str, EvaluationSet] | None = None,
    state: State | None = None,
) -> Statement:
    """Check the signature of a statement, and recompute everything that it claims.

    Args:
        statement: Return value of :func:`prove_state`.
        public_key: Public key of the expected signer, 32 bytes.
        open_dataset: Function that opens a split of a version by their names.
        takedown: Takedown list of the statement.
        evaluation: Evaluation sets of the statement, by name.
        state: State of a checkpoint that the statement must be about.

    Returns:
        The statement.

    Raises:
        IntegrityError: The statement is not signed by this key, or a claim does not
            hold; the message names it.
        ConfigError: A list or a set of the statement is not given, or is another one.
    """
    stated = read_statement(statement, public_key)
    if state is not None and canonical_json(state) != canonical_json(stated["state"]):
        raise IntegrityError(
            "the statement is about another state than that of the checkpoint"
        )
    _require_same_takedown(stated, takedown)
    ngram = _require_same_evaluation(stated, evaluation or {})
    first_step = stated["steps"][0]
    claims = claims_of(
        stated["state"], open_dataset, first_step, takedown, evaluation or {}, ngram
    )

    # Compare all claims before anything is refused: the message names every wrong one.
    problems: list[str] = []
    for claim_name, claim in claims.items():
        stated_text = canonical_json(stated[claim_name]).decode()
        computed_text = canonical_json(claim).decode()
        if stated_text != computed_text:
            problems.append(
                f"{claim_name} is {stated_text[:_SHOWN]} in the statement and {computed_text[:_SHOWN]} by the datasets"
            )
    if problems:
        raise IntegrityError(f"the statement is not valid: {'; '.join(problems)}")
    return stated


def _require_same_takedown(stated: Statement, takedown: Takedown | None) -> None:
    """Raise ConfigError unless the takedown list is that of a statement."""
    # Lists are the same if their files are.
    expected_sha256: str | None = None
    if stated["takedown"]:
        expected_sha256 = stated["takedown"]["sha256"]
    got_sha256 = None if takedown is None else takedown.sha256
    if expected_sha256 != got_sha256:
        expected_list = "no list"
        if expected_sha256 is not None:
            expected_list = f"the list with sha256 {expected_sha256}"
        raise ConfigError(
            f"takedown: the statement is about {expected_list}, got {got_sha256 or 'none'}; give the same list"
        )


def _require_same_evaluation(
    stated: Statement, evaluation: Mapping[str, EvaluationSet]
) -> int:
    """Return the number of ids of an n-gram of a statement.

    ConfigError is raised unless the evaluation sets are its own.
    """
    overlap: dict[str, Any] = stated["overlap"] or {"n": NGRAM, "sets": {}}
    # Sets are the same if their origins are, which have hashes.
    expected_identities: dict[str, Any] = {}
    for set_name, set_claim in overlap["sets"].items():
        expected_identities[set_name] = set_claim["identity"]
    got_identities: dict[str, Any] = {}
    for set_name, evaluation_set in evaluation.items():
        got_identities[set_name] = evaluation_set.identity
    if expected_identities != got_identities:
        raise ConfigError(
            f"evaluation: the statement is about {expected_identities or 'no sets'}, "
            f"got {got_identities or 'none'}; give the same sets"
        )
    return overlap["n"]


def read_statement(statement: bytes, public_key: bytes) -> Statement:
    """Read a statement and check its signature.

    Args:
        statement: The bytes of a statement.
        public_key: Public key of the expected signer, 32 bytes.

    Raises:
        IntegrityError: The bytes are not a statement, or not signed by this key.
    """
    # The bytes must be canonical: two files of one statement would have different
    # hashes.
    try:
        stated = json.loads(statement)
        signature = bytes.fromhex(stated["signature"])
        stated_key = stated["public_key"]
        canonical = canonical_json(stated | {"signature": signature.hex()})
        is_canonical = canonical + b"\n" == statement
    except (ValueError, TypeError, KeyError, RecursionError, ConfigError) as error:
        raise IntegrityError(f"not a statement: {error!r}") from error
    if not is_canonical or set(stated) != _MEMBERS or stated["format"] != FORMAT:
        raise IntegrityError(
            f"not a statement of format {FORMAT}, or changed in form; expected exactly the bytes that `tokenlake "
            "prove` wrote"
        )
    if stated_key != public_key.hex():
        raise IntegrityError(
            f"the statement is signed by the key {stated_key}; expected {public_key.hex()}"
        )
    # The signature covers everything but itself.
    signed = {name: value for name, value in stated.items() if name != "signature"}
    if not verified(public_key, canonical_json(signed), signature):
        raise IntegrityError(
            "the signature does not match: the statement was changed after it was signed"
        )
    return stated


def claims_of(
    state: State,
    open_dataset: Opener,
    first_step: int,
    takedown: Takedown | None,
    evaluation: Mapping[str, EvaluationSet],
    ngram: int,
) -> Statement:
    """Return the claims of a statement: everything but its key and its signature.

    Arguments and errors are those of :func:`prove_state`.
    """
    # The state gives the plan of the batches, and the step up to which they were
    # delivered.
    plan, position = restored(state, open_dataset)
    end_step = position.step
    deliveries = deliveries_of(plan, first_step, end_step)
    contents = [RowContents.of(dataset, takedown) for dataset in plan.datasets.values()]
    names = list(plan.datasets)
    return {
        "format": FORMAT,
        "state": json.loads(canonical_json(state)),
        "steps": [first_step, end_step],
        "datasets": _datasets_claim(plan),
        "deliveries": [delivery.to_json(names) for delivery in deliveries],
        "sources": _sources_claim(plan, deliveries, contents),
        "takedown": _takedown_claim(
            plan, deliveries, first_step, end_step, takedown, contents
        ),
        "overlap": _overlap_claim(plan, deliveries, evaluation, ngram),
    }


def _datasets_claim(plan: BatchPlan) -> dict[str, Any]:
    """Return the identity of each dataset of a plan."""
    claim: dict[str, Any] = {}
    for dataset_name, dataset in plan.datasets.items():
        claim[dataset_name] = {
            "name": dataset.name,
            "manifest": dataset.manifest.sha256,
            "kind": dataset.kind,
            "rows": len(dataset),
        }
    return claim


def _sources_claim(
    plan: BatchPlan, deliveries: Sequence[Delivery], contents: Sequence[RowContents]
) -> dict[str, Any]:
    """Return the rows, repetitions and ids delivered of each dataset.

    Ids are counted as stored, before a loader cuts rows.
    """
    claim: dict[str, Any] = {}
    for source_number, dataset_name in enumerate(plan.datasets):
        own_deliveries: list[Delivery] = []
        for delivery in deliveries:
            if delivery.source == source_number:
                own_deliveries.append(delivery)
        delivered_rows = sum(delivery.rows for delivery in own_deliveries)
        stored_rows = plan.sources[source_number].rows
        # A row that is delivered again adds its ids again.
        tokens_by_source: dict[str, int] = {}
        for source, sums in contents[source_number].sums.items():
            tokens_by_source[source] = 0
            for delivery in own_deliveries:
                tokens_by_source[source] += delivery.total(sums)
        claim[dataset_name] = {
            "rows": delivered_rows,
            "repetitions": {
                "whole": delivered_rows // stored_rows,
                "rest": delivered_rows % stored_rows,
                "of": stored_rows,
            },
            "tokens": sum(tokens_by_source.values()),
            "tokens_by_source": tokens_by_source,
        }
    return claim


def _overlap_claim(
    plan: BatchPlan,
    deliveries: Sequence[Delivery],
    evaluation: Mapping[str, EvaluationSet],
    ngram: int,
) -> dict[str, Any] | None:
    """Return the overlap of evaluation sets and delivered rows; None without sets."""
    if not evaluation:
        return None
    # Number of deliveries of each row; only rows that were read are searched.
    times = [np.zeros(source.rows, np.int64) for source in plan.sources]
    for delivery in deliveries:
        times[delivery.source] += delivery.times()
    read = list(zip(plan.datasets.values(), times, strict=True))
    return {
        "n": ngram,
        "method": METHOD,
        "rows": sum(int(np.count_nonzero(row_times)) for row_times in times),
        "sets": overlap_of(evaluation, read, ngram),
    }


def _takedown_claim(
    plan: BatchPlan,
    deliveries: Sequence[Delivery],
    first_step: int,
    end_step: int,
    takedown: Takedown | None,
    contents: Sequence[RowContents],
) -> dict[str, Any] | None:
    """Return the steps that delivered a row with a piece of a listed document.

    The claim also states the step from which on no listed document was delivered.
    """
    if takedown is None:
        return None
    # Each dataset has its own marked rows and its own deliveries.
    first_steps: list[int] = []
    last_steps: list[int] = []
    for delivery in deliveries:
        row_group, row = plan.sources[delivery.source].group_of(
            contents[delivery.source].marked
        )
        steps = steps_of_rows(plan, delivery, row_group, row)
        if steps is not None:
            first_steps.append(steps[0])
            last_steps.append(steps[1])
    last_step = max(last_steps, default=None)
    # Deliveries from that step on let a verifier compute that they hold no marked row.
    none_from = first_step if last_step is None else last_step + 1
    stored_documents = frozenset[tuple[int, ...]]().union(
        *(rows.stored for rows in contents)
    )
    later_deliveries = deliveries_of(plan, none_from, end_step)
    names = list(plan.datasets)
    return {
        "sha256": takedown.sha256,
        "documents": len(takedown.documents),
        "stored": len(stored_documents),
        "rows": sum(len(rows.marked) for rows in contents),
        "first_step": min(first_steps, default=None),
        "last_step": last_step,
        "none_from": none_from,
        "deliveries": [delivery.to_json(names) for delivery in later_deliveries],
    }
