"""Published filters: every rule at its limit, and the step of a build that counts
rows by the rule they break.
"""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from tests.etl.outputs_support import build_here, settings, write_jsonl
from tokenlake import DatasetConfig, PipelineConfig
from tokenlake.config.quality import CONSTANTS
from tokenlake.config.resolve import resolve_source
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.etl.sources import Rows
from tokenlake.etl.text import open_chain, open_quality
from tokenlake.etl.text.quality import JudgedText

C4_OF_ANY_LINE = [("line_ends", 0), ("min_line_words", 0), ("min_sentences", 1)]
SENTENCE = (
    "The quick brown fox, with all of that fur, is said to have been here once more"
)
PLAIN = "\n".join(f"{SENTENCE} {number}." for number in range(6))


def distinct(count: int, word: str = "word") -> str:
    return " ".join(
        f"{word}{chr(97 + n // 676 % 26)}{chr(97 + n // 26 % 26)}{chr(97 + n % 26)}"
        for n in range(count)
    )


STOPPED = f"the of {distinct(60)}"


@pytest.mark.parametrize(
    ("name", "text", "rule"),
    [
        ("gopher_quality", PLAIN, None),
        ("gopher_quality", f"the of {distinct(48)}", None),
        ("gopher_quality", f"the of {distinct(47)} ... ! — ”", "few_words"),
        ("gopher_quality", "the of " + distinct(100_000, "w"), "many_words"),
        ("gopher_quality", "the of " + "ab " * 60, "short_words"),
        ("gopher_quality", "the of " + distinct(60, "wordwordword"), "long_words"),
        ("gopher_quality", f"the of {distinct(52)}" + " #" * 6, None),
        ("gopher_quality", STOPPED + " #" * 6, None),
        ("gopher_quality", STOPPED + " #" * 7, "hashes"),
        ("gopher_quality", STOPPED + " x..." * 10, "ellipses"),
        ("gopher_quality", "\n".join(f"- {SENTENCE}" for _ in range(6)), "bullets"),
        (
            "gopher_quality",
            f"{SENTENCE}…\n" * 2 + f"{SENTENCE}.\n" * 4,
            "ellipsis_lines",
        ),
        ("gopher_quality", STOPPED + " 1234" * 15, None),
        ("gopher_quality", STOPPED + " 1234" * 16, "few_letters"),
        ("gopher_quality", "the " + distinct(60), "few_stop_words"),
        ("gopher_repetition", "", "empty"),
        ("gopher_repetition", distinct(60), None),
        ("gopher_repetition", "a\n\na\n\nb", "repeated_paragraphs"),
        (
            "gopher_repetition",
            f"{distinct(9)}\n\n{distinct(9)}\n\na\n\nb\n\nc",
            "in_repeated_paragraphs",
        ),
        ("gopher_repetition", "a\na\nb", "repeated_lines"),
        (
            "gopher_repetition",
            f"{distinct(9)}\n{distinct(9)}\na\nb\nc",
            "in_repeated_lines",
        ),
        (
            "gopher_repetition",
            " ".join(f"so then {word}" for word in distinct(20).split()),
            "in_top_2gram",
        ),
        ("gopher_repetition", distinct(70) + " " + distinct(9), None),
        (
            "gopher_repetition",
            distinct(60) + " x y " + distinct(15),
            "in_repeated_5grams",
        ),
        ("c4", PLAIN, None),
        ("c4", PLAIN.replace("5.", "5"), None),
        ("c4", PLAIN.replace("4.", "4").replace("5.", "5..."), "few_sentences"),
        ("c4", f"{PLAIN}\nThis is lorem ipsum dolor.", "lorem_ipsum"),
        ("c4", f"{PLAIN}\nif (x) {{ do it }}.", "curly_bracket"),
        (
            "c4",
            "\n".join(
                f"{SENTENCE}, turn on JavaScript {number}." for number in range(6)
            ),
            "few_sentences",
        ),
        (
            "c4",
            "\n".join(
                f"{SENTENCE}, our privacy policy {number}." for number in range(6)
            ),
            "few_sentences",
        ),
        ("c4", "One [12]. Two. Three. Four[edit]. Five.", None),
        ("c4", "Two words.\n" * 6, "few_sentences"),
        ("c4", f"{'x' * 1001} and one. Two. Three. Four. Five.", "few_sentences"),
        ("fineweb", PLAIN, None),
        ("fineweb", " \n ", "empty"),
        ("fineweb", PLAIN.replace(".", ""), "line_ends"),
        ("fineweb", "漢字。\n" + f"{SENTENCE}\n{SENTENCE} again", None),
        ("fineweb", "A short line.\nAnother short line.\nA third one.", "short_lines"),
        ("fineweb", f"{SENTENCE}.\n{SENTENCE}.\n{PLAIN}", "in_repeated_lines"),
        ("fineweb", f"{SENTENCE}.\n" + "\n" * 10, "list"),
    ],
)
def test_a_document_is_judged_by_the_first_rule_that_it_breaks(
    name: str, text: str, rule: str | None
) -> None:
    assert open_quality([(name, ())])(text) == (rule and f"{name}.{rule}")


def test_constants_can_be_others_and_filters_are_asked_in_order() -> None:
    assert open_quality([("c4", ())])(PLAIN.replace(".", "")) == "c4.few_sentences"
    assert open_quality([("c4", [("line_ends", 0)])])(PLAIN.replace(".", "")) is None
    both = [("fineweb", ()), ("gopher_quality", ())]
    assert open_quality(both)("Short.") == "fineweb.short_lines"
    assert open_quality(both[::-1])("Short.") == "gopher_quality.few_words"


def test_words_and_sentences() -> None:
    words = JudgedText(
        "Don't use 3.14, or x=3 — e.g. well-known --- 1,000 (snake_case)..."
    ).words
    assert words[:6] == ["Don't", "use", "3.14", ",", "or", "x=3"]
    assert words[6:] == [
        "—",
        "e.g",
        ".",
        "well",
        "-",
        "known",
        "---",
        "1,000",
        "(",
        "snake_case",
        ")",
        "...",
    ]
    counts = {
        "One": 1,
        "One. Two!": 2,
        '"One?" Two': 2,
        "One... two, three": 1,
        "One; two": 1,
    }
    assert {text: sentences_of(text) for text in counts} == counts
    for mark in (".", "?", "!", "。", "؟"):
        assert (
            open_quality([("fineweb", [("min_line_ends", 1)])])(f"{SENTENCE}{mark}")
            is None
        )


def sentences_of(line: str) -> int:
    """Return the number of sentences that C4 finds in a line: the most that may be
    required of it.
    """
    count = 0
    judge = open_quality([("c4", C4_OF_ANY_LINE)])
    while judge(line) is None:
        count += 1
        judge = open_quality([("c4", [*C4_OF_ANY_LINE, ("min_sentences", count + 1)])])
    return count


def test_every_constant_has_a_source_and_acts() -> None:
    for name, constants in CONSTANTS.items():
        for key, (value, source) in constants.items():
            assert (
                "http" in source
                or "code" in source
                or "datatrove" in source
                or "TensorFlow" in source
            )
            open_quality([(name, [(key, value)])])(PLAIN)


def test_the_step_counts_rows_by_rule(tmp_path: Path, tokenizer_dir: Path) -> None:
    records = [
        {"text": PLAIN},
        {"text": "Short."},
        {"text": "# " * 80},
        {"text": f"{SENTENCE}.\n" * 9},
    ]
    data = write_jsonl(tmp_path / "a.jsonl", records)
    steps = [
        {"quality": {"filters": ["fineweb", {"gopher_quality": {"min_words": 5}}]}}
    ]
    built = build_here(settings(tmp_path, tokenizer_dir, data, transforms=steps))
    assert len(built.rows()) == 1
    assert built.manifest.accounts["s"].filtered == {
        "fineweb.short_lines": 1,
        "fineweb.line_ends": 1,
        "fineweb.in_repeated_lines": 1,
    }
    assert (
        json.loads(json.dumps(built.manifest.to_json()))["account"]["filtered"][
            "fineweb.short_lines"
        ]
        == 1
    )


def test_rows_are_judged_alike_one_by_one_and_as_columns() -> None:
    quality = {"quality": {"filters": ["fineweb"], "field": "body"}}
    dataset = DatasetConfig(data_files="x", transforms=(quality,))  # pyright: ignore[reportArgumentType]
    step = open_chain(
        resolve_source(PipelineConfig(datasets=(dataset,)), dataset).texts
    )
    records = [
        {"body": PLAIN, "n": 1},
        {"body": "Short.", "n": 2},
        {"body": None, "n": 3},
    ]
    for rows in (Rows(objects=records), Rows(pa.RecordBatch.from_pylist(records))):
        outcome = step.on_rows(rows)
        assert (outcome.rows.objects, outcome.filtered) == (
            records[:1],
            {"fineweb.short_lines": 1},
        )
        [(index, fault)] = outcome.bad
        assert (index, fault.reason) == (2, "not_text")
    assert (step.expand(records[0]), step.expand(records[1])) == ([records[0]], [])
    assert step.needs(("n",)) == ("n", "body")
    with pytest.raises(BadRecordError, match="'body' holds NoneType"):
        step.expand(records[2])


def test_wrong_filters_are_said(tmp_path: Path) -> None:
    for filters, told in (
        ("c5", r"unknown filter 'c5'"),
        (
            [{"c4": {"line_end": 1}}],
            r"unknown constant 'line_end'; did you mean 'line_ends'\?",
        ),
        ([{"c4": {"line_ends": "yes"}}], r"c4.line_ends: got 'yes', must be a number"),
        (["c4", "c4"], r"the filter 'c4' is named twice"),
    ):
        with pytest.raises(ConfigError, match=told):
            build_here(
                settings(
                    tmp_path,
                    tmp_path,
                    "x",
                    transforms=[{"quality": {"filters": filters}}],
                )
            )
