"""What a person is told of long documents, before the run and after it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.builds import config_of
from tokenlake.cli.app import main
from tokenlake.config.resolved import ResolvedTokenizer
from tokenlake.etl.runner import build_dataset
from tokenlake.report.dataset import remarks
from tokenlake.report.plan import expected, policy
from tokenlake.store.account import Account

SETTINGS: dict[str, Any] = {
    "name_or_path": "t",
    "add_special_tokens": True,
    "max_length": 2048,
    "trust_remote_code": False,
    "special_tokens_in_text": "literal",
    "engine": "auto",
}
LONGER = "about 3.0% of documents are longer than 2,048 tokens"
DROPPED = "about 12% of tokens dropped"


@pytest.mark.parametrize(
    ("options", "short", "sentence"),
    [
        ({"long_documents": "keep"}, "kept", "kept whole, nothing is dropped"),
        (
            {"long_documents": "truncate", "truncation_strategy": "word"},
            "truncated at 2,048",
            f"{LONGER}: truncated between words, their ends are cut away, {DROPPED}",
        ),
        (
            {"long_documents": "truncate", "truncation_side": "left"},
            "truncated at 2,048",
            f"{LONGER}: truncated at a token, their beginnings are cut away, {DROPPED}",
        ),
        ({"long_documents": "split"}, "split at 2,048", f"{LONGER}: split into pieces, nothing is dropped"),
        ({"long_documents": "drop"}, "left out above 2,048", f"{LONGER}: left out, {DROPPED}"),
    ],
)
def test_a_policy_in_a_sentence(options: dict[str, Any], short: str, sentence: str):
    settings = ResolvedTokenizer(**SETTINGS, **options)
    assert policy(settings) == short
    assert expected(settings, 1000, 30, 50_000, 6_000) == sentence


def test_a_sample_without_long_documents_still_tells_the_policy():
    settings = ResolvedTokenizer(**SETTINGS, long_documents="drop")
    assert expected(settings, 10, 0, 5, 0) == (
        "no document of the sample is longer than 2,048 tokens; longer ones are left out"
    )
    assert "less than 0.1% of documents" in expected(settings, 5000, 1, 5, 0)
    split = ResolvedTokenizer(**SETTINGS, long_documents="split")
    assert expected(split, 10, 5, 5, 0, masked=True).endswith(
        "split into pieces, those without loss are left out"
    )


def test_what_was_done_is_told_with_its_cost():
    account = Account(
        kept=40,
        filtered={"too_long": 2, "nothing_to_learn": 1, "empty": 4},
        tokens=1000,
        dropped={"truncated": 125, "too_long": 50, "nothing_to_learn": 7},
        normalized={"long_documents_truncate": 10, "crlf": 3},
    )
    assert remarks(account) == [
        "normalized on reading: 3 crlf",
        "long documents truncated: 10 of 40; 125 of 1,000 tokens dropped (12.50%)",
        "documents left out, too long: 2; 50 of 1,000 tokens dropped (5.00%)",
        "documents left out, nothing to learn is left of them: 1; 7 of 1,000 tokens dropped (0.70%)",
    ]
    account = Account(
        kept=3, tokens=9, dropped={"nothing_to_learn": 3}, normalized={"long_documents_split": 2}
    )
    assert remarks(account) == [
        "long documents split: 2 of 3",
        "pieces left out, nothing to learn in them; 3 of 9 tokens dropped (33.33%)",
    ]


@pytest.mark.parametrize(
    ("policy", "pack"),
    [("keep", True), ("truncate", True), ("split", True), ("split", False), ("drop", False)],
)
def test_the_plan_comes_near_to_what_the_account_says(
    tmp_path: Path, tokenizer_dir: Path, capsys: pytest.CaptureFixture[str], policy: str, pack: bool
):
    source = tmp_path / "in.jsonl"
    texts = [f"{number} some words of a text. " * (1 + number % 9) for number in range(300)]
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    config = config_of(tmp_path, source, tokenizer_dir, pack=64 if pack else None)
    config["tokenize"] = {"max_length": 50, "long_documents": policy, "engine": "tokenizers"}
    file = tmp_path / "set.yaml"
    file.write_text(json.dumps(config))
    assert main(["plan", str(file), "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    (line,) = plan["sources"]
    assert main(["plan", str(file)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert {"keep": "kept whole", "drop": "left out above 50"}.get(policy, f"{policy}") in shown
    account = build_dataset(config, workers=1).manifest.account
    about = line["long_documents"]
    long = {"drop": account.filtered.get("too_long", 0)}.get(
        policy, account.normalized.get(f"long_documents_{policy}", 0)
    )
    assert about["policy"] == policy
    assert about["documents"] == pytest.approx(long, rel=0.25)
    assert about["dropped_tokens"] == pytest.approx(sum(account.dropped.values()), rel=0.25)
    written = account.content_packed + account.bos + account.eos
    assert plan["estimate"]["tokens"] == pytest.approx(written, rel=0.1)
    rows = account.sequences if pack else account.documents
    assert plan["estimate"]["sequences"] == pytest.approx(rows, rel=0.1)
    assert main(["show", "set", "--store", str(tmp_path / "store")]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert ("long documents" in told or "too long" in told) == (policy != "keep")
