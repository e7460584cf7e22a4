"""Statements: what they say is true, both verifiers say so, and whatever is forged
is refused by both.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

import tokenlake as tl
from examples import check_statement as alone
from tests.proof.support import (
    KEY,
    MIXED_FORMS,
    MIXTURES,
    ORDERS,
    PUBLIC,
    delivered,
    key_file,
    listed,
    mixture_of,
    plan_of,
    state_at,
)
from tests.reading.support import lake_of
from tokenlake.base import canonical_json
from tokenlake.cli.app import main
from tokenlake.errors import ConfigError, IntegrityError
from tokenlake.runtime.loader import Document, steps_of_document
from tokenlake.runtime.proof import (
    EvaluationSet,
    Takedown,
    check_statement,
    private_key,
    prove_state,
    public_key,
    verified,
)

ALONE = Path(alone.__file__)


class World(NamedTuple):
    """A store, a signed statement about a mixture of it, and what the statement
    speaks of.
    """

    store: Path
    key: Path
    list: Path
    statement: bytes
    sets: dict[str, EvaluationSet]

    def open(self, name: str, split: str) -> tl.Dataset:
        return tl.open(str(self.store), name, split=split)

    def prove(self, state: dict[str, Any], **asked: Any) -> bytes:
        return prove_state(
            state, self.open, str(self.key), takedown=Takedown.read(self.list), **asked
        )

    def check(self, statement: bytes, **given: Any) -> dict[str, Any]:
        asked: dict[str, Any] = {
            "takedown": Takedown.read(self.list),
            "evaluation": self.sets,
        } | given
        return check_statement(statement, PUBLIC, self.open, **asked)

    def check_alone(self, statement: bytes) -> dict[str, Any]:
        return alone.check(statement, PUBLIC.hex(), self.store, self.list)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("proofs")
    store = Path(lake_of(tmp_path_factory).url)
    rows = tl.open(str(store), "plain", split="train")
    positions = sorted({rows.documents(row)[0]["position"] for row in (3, 40, 100)})
    takedown = listed(folder / "takedown.parquet", {"notes.jsonl": positions})
    sets = {
        "held": EvaluationSet.of_dataset(
            tl.open(str(store), "plain", split="validation")
        )
    }
    begun = World(store, key_file(folder), takedown, b"", sets)
    plan = plan_of(mixture_of(rows, begun.open("learned", "train")))
    return begun._replace(statement=begun.prove(state_at(plan, 25), evaluation=sets))


@pytest.mark.parametrize("name", [*ORDERS, *MIXTURES, *MIXED_FORMS, "texts", "judged"])
def test_a_statement_says_what_was_delivered(world: World, name: str) -> None:
    a, b = world.open("plain", "train"), world.open("learned", "train")
    if name in MIXTURES:
        plan = plan_of(mixture_of(a, b, **MIXTURES[name]))
    elif name in MIXED_FORMS:
        plan = plan_of(mixture_of(a, b), **MIXED_FORMS[name])
    else:
        data = world.open(name, "train") if name in ("texts", "judged") else a
        plan = plan_of(data, **ORDERS.get(name, {"epochs": None}))
    signed = world.prove(state_at(plan, 23), first_step=4)
    said = json.loads(signed)
    assert said["steps"] == [4, 23]
    for source, steps in delivered(plan, 4, 23).items():
        dataset, rows = plan.datasets[source], np.concatenate(steps)
        whole, rest = divmod(len(rows), len(dataset))
        repeated = {"whole": whole, "rest": rest, "of": len(dataset)}
        found = said["sources"][source]
        assert (found["rows"], found["repetitions"]) == (len(rows), repeated)
        if dataset.kind == "packed":
            lengths = [
                int((dataset[int(row)]["segment_ids"] > 0).sum()) for row in rows
            ]
            assert found["tokens"] == sum(lengths)
    documents = [
        Document(entry.file_id, position)
        for entry in plan.datasets[next(iter(plan.datasets))].manifest.inputs
        for _, position in Takedown.read(world.list).documents
        if entry.path == "notes.jsonl"
    ]
    seen = [
        row.step
        for each in documents
        for row in steps_of_document(plan, each, until=23, passes=9)
    ]
    there = [step for step in seen if step >= 4]
    assert said["takedown"]["last_step"] == (max(there) if there else None)
    assert said["takedown"]["first_step"] == (min(there) if there else None)
    assert said["takedown"]["none_from"] == (max(there) + 1 if there else 4)
    assert world.check(signed, evaluation={}) == world.check_alone(signed) | {
        "signature": said["signature"]
    }


def test_a_run_of_other_hosts_that_was_resumed_has_the_statement_of_one_that_was_not(
    world: World,
) -> None:
    data = mixture_of(world.open("plain", "train"), world.open("learned", "train"))
    state: dict[str, Any] | None = None
    for hosts in (1, 4, 2):
        with tl.DataLoader(data, 8, seed=3, host=(hosts - 1, hosts)) as loader:
            if state is not None:
                loader.set_state(json.loads(json.dumps(state)))
            for _ in zip(range(7), loader, strict=False):
                pass
            state = loader.get_state()
    assert state is not None and state["step"] == 21
    assert world.prove(state) == world.prove(state_at(plan_of(data, seed=3), 21))


def test_the_ids_of_a_whole_epoch_are_those_of_the_manifest(world: World) -> None:
    for name in ("plain", "learned", "texts", "left", "judged"):
        data = world.open(name, "train")
        plan = plan_of(data, batch_size=len(data))
        (source,) = json.loads(world.prove(state_at(plan, 1)))["sources"].values()
        assert source["tokens"] == data.manifest.splits["train"].tokens
        assert sum(source["tokens_by_source"].values()) == source["tokens"]


def test_the_ngrams_of_an_evaluation_set_are_counted_in_what_was_read(
    world: World,
) -> None:
    overlap = json.loads(world.statement)["overlap"]
    held, rows = (
        overlap["sets"]["held"],
        [world.open(name, "train") for name in ("plain", "learned")],
    )
    plan = plan_of(mixture_of(*rows))

    def grams(dataset: tl.Dataset, row: int) -> set[tuple[int, ...]]:
        stored = dataset.read(row, row + 1).to_pylist()[0]
        ends = np.cumsum(stored["segment_lengths"])
        spans = zip(ends - stored["segment_lengths"], ends, strict=True)
        ids = stored["input_ids"]
        return {
            tuple(ids[at : at + 13])
            for begin, end in spans
            for at in range(begin, end - 12)
        }

    validation = world.open("plain", "validation")
    known = set[tuple[int, ...]]().union(
        *(grams(validation, row) for row in range(len(validation)))
    )
    reads = {
        name: np.unique(np.concatenate(each))
        for name, each in delivered(plan, 0, 25).items()
    }
    read = [
        grams(dataset, int(row))
        for dataset, each in zip(rows, reads.values(), strict=True)
        for row in each
    ]
    assert overlap["rows"] == len(read)
    assert held["ngrams"] == len(known)
    assert held["found"] == len(known & set[tuple[int, ...]]().union(*read)) > 0
    assert (
        held["rows_with"]
        == sum(not known.isdisjoint(each) for each in read)
        < len(read)
    )


def test_texts_are_an_evaluation_set_too(world: World, tmp_path: Path) -> None:
    data = world.open("plain", "train")
    (tmp_path / "set.jsonl").write_text(
        json.dumps({"text": data.decode(3)[0]}) + "\n" + '{"text": "Ha"}\n'
    )
    sets = {"quiz": EvaluationSet.of_texts(tmp_path / "set.jsonl", data.tokenizer)}
    said = json.loads(
        world.prove(
            state_at(plan_of(data, batch_size=len(data)), 1), evaluation=sets, ngram=5
        )
    )
    found = said["overlap"]["sets"]["quiz"]
    assert (found["documents"], found["short"], found["documents_with"]) == (2, 1, 1)
    (tmp_path / "set.jsonl").write_text('{"words": 1}\n')
    with pytest.raises(ConfigError, match="JSON Lines with the column 'text'"):
        EvaluationSet.of_texts(tmp_path / "set.jsonl", data.tokenizer)


@given(st.data())
def test_a_changed_bit_is_refused(world: World, data: st.DataObject) -> None:
    bit = data.draw(st.integers(0, 8 * len(world.statement) - 1))
    changed = bytearray(world.statement)
    changed[bit // 8] ^= 1 << bit % 8
    refused(world, bytes(changed))


FORGED: dict[str, Callable[[dict[str, Any]], object]] = {
    "rows": lambda said: said["sources"]["a"].update(
        rows=said["sources"]["a"]["rows"] + 1
    ),
    "tokens": lambda said: said["sources"]["b"].update(tokens=1),
    "epochs": lambda said: said["sources"]["a"]["repetitions"].update(whole=3),
    "a taken down document": lambda said: said["takedown"].update(
        deliveries=[
            each | {"begin": [0] * len(each["begin"])}
            for each in said["takedown"]["deliveries"] or said["deliveries"]
        ]
    ),
    "another manifest": lambda said: said["datasets"]["a"].update(
        manifest=said["datasets"]["b"]["manifest"]
    ),
    "what lanes gave": lambda said: said["deliveries"][0]["end"].reverse(),
    "the seed of an order": lambda said: said["deliveries"][1].update(
        seed=said["deliveries"][1]["seed"] ^ 1
    ),
}


TRUSTED = ("what lanes gave", "the seed of an order")
"""By the verifier that knows nothing of mixtures."""


@pytest.mark.parametrize("name", FORGED)
def test_a_claim_that_does_not_hold_is_refused_whoever_signed_it(
    world: World, name: str
) -> None:
    """The signer lies: the signature is right."""
    said = json.loads(world.statement)
    del said["signature"]
    FORGED[name](said)
    signature = KEY.sign(canonical_json(said)).hex()
    with pytest.raises(IntegrityError, match="is not valid"):
        world.check(canonical_json(said | {"signature": signature}) + b"\n")
    if name not in TRUSTED:
        with pytest.raises(SystemExit, match="refused"):
            world.check_alone(canonical_json(said | {"signature": signature}) + b"\n")


def test_another_key_state_store_list_and_form_are_refused(
    world: World, tmp_path: Path
) -> None:
    other = Ed25519PrivateKey.generate().public_key().public_bytes_raw()
    with pytest.raises(IntegrityError, match="expected"):
        check_statement(world.statement, other, world.open)
    refused(world, json.dumps(json.loads(world.statement)).encode())
    refused(world, world.statement.replace(b'"format":1', b'"format":1,"format":1'))
    data = world.open("plain", "train")
    with pytest.raises(IntegrityError, match="about another state"):
        world.check(world.statement, state=state_at(plan_of(data), 25))

    def swapped(name: str, split: str) -> tl.Dataset:
        return world.open("learned" if name == "plain@v1" else name, split)

    with pytest.raises(ConfigError, match="the state belongs to another run: source "):
        check_statement(
            world.statement,
            PUBLIC,
            swapped,
            takedown=Takedown.read(world.list),
            evaluation=world.sets,
        )
    with pytest.raises(
        ConfigError, match="takedown: the statement is about the list with"
    ):
        world.check(
            world.statement,
            takedown=Takedown.read(listed(tmp_path / "t.parquet", {"x": [1]})),
        )
    with pytest.raises(ConfigError, match="evaluation: the statement is about"):
        world.check(world.statement, evaluation={})


def refused(world: World, statement: bytes) -> None:
    with pytest.raises((IntegrityError, ConfigError)):
        world.check(statement)
    with pytest.raises((SystemExit, ValueError, KeyError, TypeError, AttributeError)):
        world.check_alone(statement)


def test_signatures_are_those_of_the_standard() -> None:
    """RFC 8032, section 7.1, tests 1 and 2; then a scalar that is too large, and
    points that are none.
    """
    for key, message, signature in (
        (
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
            "",
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46b"
            "d25bf5f0595bbe24655141438e7a100b",
        ),
        (
            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
            "72",
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c"
            "387b2eaeb4302aeeb00d291612bb0c00",
        ),
    ):
        parts = bytes.fromhex(key), bytes.fromhex(message), bytes.fromhex(signature)
        assert verified(*parts) and alone.is_signed(*parts)
        order = 2**252 + 27742317777372353535851937790883648493
        large = (int.from_bytes(parts[2][32:], "little") + order).to_bytes(32, "little")
        for wrong in (
            parts[2][:32] + large,
            parts[2][:63] + b"\xff",
            b"\xff" * 32 + parts[2][32:],
            b"",
        ):
            assert not verified(parts[0], parts[1], wrong)
        assert not verified(b"\x02" * 31, parts[1], parts[2]) and not verified(
            b"\xff" * 32, *parts[1:]
        )


# All points of small order in their shortest encoding; the last is not one that an
# encoding may have (y >= p).
SMALL_ORDER = [
    "0100000000000000000000000000000000000000000000000000000000000000",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0000000000000000000000000000000000000000000000000000000000000080",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
]


def signed_alone(*parts: bytes) -> bool:
    try:
        return alone.is_signed(*parts)
    except SystemExit:  # no point of the curve
        return False


@pytest.mark.parametrize("key", SMALL_ORDER)
def test_a_key_for_which_anybody_can_sign_is_refused(key: str) -> None:
    """With the neutral point, and with others by chance, the equation holds for a
    signature that nobody made.
    """
    for number in range(16):
        message = b"any statement %d" % number
        for first in SMALL_ORDER:
            forged = bytes.fromhex(first) + bytes(32)
            assert not verified(bytes.fromhex(key), message, forged)
            assert not signed_alone(bytes.fromhex(key), message, forged)
    with pytest.raises(ConfigError, match="it has no private key"):
        public_key(key)


def test_a_signature_that_begins_with_a_point_of_small_order_is_refused() -> None:
    """A key of mixed order would let the same statement have several signatures."""
    message = b"a statement"
    for first in SMALL_ORDER:
        assert not verified(PUBLIC, message, bytes.fromhex(first) + bytes(32))


def test_keys_are_named_and_never_given(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert (
        private_key(str(world.key))[1]
        == PUBLIC
        == public_key(str(world.key.with_name("key.pub.pem")))
    )
    monkeypatch.setenv("PROOF_KEY", world.key.read_text())
    assert private_key({"env": "PROOF_KEY"})[1] == PUBLIC == public_key(PUBLIC.hex())
    (tmp_path / "none.pem").write_text(
        "-----BEGIN PRIVATE KEY-----\nsecret\n-----END PRIVATE KEY-----\n"
    )
    for wrong in (
        str(tmp_path / "none.pem"),
        str(tmp_path / "nowhere"),
        {"env": "NOT_THERE"},
    ):
        with pytest.raises(ConfigError) as error:
            private_key(wrong)
        assert "secret" not in str(error.value)
    with pytest.raises(ConfigError, match="holds no public key"):
        public_key(str(world.key))


def test_the_command_signs_and_checks(
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TOKENLAKE_STORE", str(world.store))
    plan = plan_of(world.open("plain", "train"), epochs=None)
    (tmp_path / "run" / "30" / "data").mkdir(parents=True)
    (tmp_path / "run" / "30" / "data" / "metadata").write_text(
        json.dumps(state_at(plan, 30))
    )
    about = ("--takedown", str(world.list), "--evaluation", "held=plain@v1/validation")
    out = tmp_path / "statement.json"
    assert (
        main(
            [
                "prove",
                str(tmp_path / "run"),
                "--key",
                str(world.key),
                *about,
                "-o",
                str(out),
            ]
        )
        == 0
    )
    shown = capsys.readouterr().out
    assert (
        "steps       0 to 29" in shown
        and "1.538" in shown
        and "3 documents, 3 of them stored" in shown
    )
    public = str(world.key.with_name("key.pub.pem"))
    assert (
        main(["prove", "--check", str(out), "--public-key", public, *about, "--json"])
        == 0
    )
    assert json.loads(capsys.readouterr().out) == json.loads(out.read_bytes())
    arguments = [str(ALONE), str(out), PUBLIC.hex(), str(world.store), str(world.list)]
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and done.stdout.startswith("holds: steps [0, 30]"), (
        done.stderr
    )
    out.write_bytes(out.read_bytes().replace(b'"rows"', b'"Rows"', 1))
    assert main(["prove", "--check", str(out), "--public-key", public, *about]) == 3
    assert main(["prove", str(tmp_path / "run")]) == 2
    assert main(["prove", str(world.store), "--key", str(world.key)]) == 2
    assert (
        "contains no checkpoint with the state of a loader" in capsys.readouterr().err
    )
    assert main(["prove", "--check", str(out)]) == 2


def test_the_independent_check_needs_only_numpy_and_pyarrow() -> None:
    imported: set[str] = set()
    for node in ast.walk(ast.parse(ALONE.read_text())):
        if isinstance(node, ast.Import):
            imported.update(name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")
    packages = {name.partition(".")[0] for name in imported}
    assert packages - sys.stdlib_module_names == {"numpy", "pyarrow"}


@pytest.mark.parametrize(
    "file", ["web/a/b.jsonl", "a/b.jsonl", "b.jsonl", "./b.jsonl", "-7", 2**64 - 7]
)
def test_the_independent_check_finds_a_listed_file_by_all_its_names(
    file: int | str,
) -> None:
    inputs = [{"file_id": -7, "path": "web/a/b.jsonl"}]
    pieces = [{"file": -7, "position": 3}]
    alone.check_takedown([{"file": file, "position": 2}], inputs, pieces)
    alone.check_takedown([{"file": ".jsonl", "position": 3}], inputs, pieces)
    with pytest.raises(SystemExit, match="a document of the takedown list was read"):
        alone.check_takedown([{"file": file, "position": 3}], inputs, pieces)


def test_the_independent_check_refuses_a_longer_signature() -> None:
    message = b"a statement"
    signature = KEY.sign(message)
    assert alone.is_signed(PUBLIC, message, signature)
    assert not alone.is_signed(PUBLIC, message, signature + b"\0")
