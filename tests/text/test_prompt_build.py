"""Whole builds of prompts: what is learned decodes to the answers, packed and
unpacked, and nothing is lost.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenlake as tl
from tests.builds import Config, config_of
from tests.text.support import Document, Row, documents
from tests.tokenizer_reference import ReferenceTokenizer
from tests.tokenizers.tokenizer_samples import byte_level, save, sentencepiece
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.etl import build_dataset
from tokenlake.etl.tokenizers import TokenizerFiles

ALPACA = """Below is an instruction that describes a task.

### Instruction:
{instruction}

### Input:
{input}

### Response:
{output}
"""
PROMPT = {
    "template": ALPACA,
    "input_columns": ["instruction", "input"],
    "label_column": "output",
}


def alpaca(count: int = 40) -> list[Row]:
    return [
        {
            "instruction": f"Say it {index} times" * (index % 3 + 1),
            "input": "" if index % 2 else f"été {index}",
            "output": f"said – {index}" * (index % 4 + 1),
        }
        for index in range(count)
    ]


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for name, files in (("bos", sentencepiece()), ("plain", byte_level())):
        found[name] = save(files, tmp_path_factory.mktemp(name))
    return found


def config(
    tmp_path: Path,
    rows: list[Row],
    tokenizer: Path,
    *,
    kind: str = "jsonl",
    **changes: Any,
) -> Config:
    """A build of `rows`; `changes` are of the dataset, but for ``pack``."""
    folder = tmp_path / "in"
    folder.mkdir(exist_ok=True)
    if kind == "jsonl":
        (folder / "rows.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows)
        )
    else:
        pq.write_table(pa.Table.from_pylist(rows), folder / "rows.parquet")
    pack = changes.pop("pack", {"enabled": False})
    return {
        **config_of(tmp_path, folder, tokenizer, **{"prompt": PROMPT, **changes}),
        "pack": pack,
    }


@functools.cache
def backend(tokenizer: Path) -> ReferenceTokenizer:
    return ReferenceTokenizer.of_folder(tokenizer)


def decoded(tokenizer: Path, ids: list[int]) -> str:
    return backend(tokenizer).decode(ids, skip_special_tokens=False)


def learned(tokenizer: Path, document: Document) -> str:
    return decoded(
        tokenizer, [token for token, mark in zip(*document, strict=True) if mark]
    )


@pytest.mark.parametrize(
    "pack", [{"enabled": False}, {"enabled": True, "seq_length": 48}]
)
@pytest.mark.parametrize(
    ("name", "kind", "eos"),
    [("bos", "jsonl", "</s>"), ("plain", "parquet", "<|endoftext|>")],
)
def test_what_is_learned_is_the_answers_and_their_eos(
    tmp_path, tokenizers, pack, name, kind, eos
) -> None:
    rows = alpaca()
    result = build_dataset(
        config(tmp_path, rows, tokenizers[name], kind=kind, pack=pack), workers=1
    )
    made = documents(result)
    assert [learned(tokenizers[name], document) for document in made] == [
        row["output"] + eos for row in rows
    ]
    texts = [ALPACA.removesuffix("\n").format(**row) for row in rows]
    head = "<s>" if name == "bos" else ""
    assert [
        decoded(tokenizers[name], ids).replace("<s> ", "<s>") for ids, _ in made
    ] == [head + text + eos for text in texts]
    account = result.manifest.account
    assert (account.rows_read, account.kept, account.documents) == (40, 40, 40)
    assert (account.bos, account.eos) == (40 * bool(head), 40)
    assert (
        result.manifest.totals.tokens
        == account.content_packed + account.bos + account.eos
    )


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_build_and_the_prompt_engine_agree_also_on_what_is_cut(
    tmp_path, tokenizers, side
) -> None:
    rows = alpaca()
    made = config(tmp_path, rows, tokenizers["bos"])
    made["tokenize"] = {
        "max_length": 100,
        "long_documents": "truncate",
        "truncation_side": side,
    }
    built = documents(build_dataset(made, workers=1))
    engine = tl.PromptEngine(
        PROMPT, tokenizers["bos"], padding=False, max_length=100, truncation_side=side
    )
    results = [engine.process(row) for row in rows]
    examples = [result.unwrap() for result in results if result.is_ok()]
    assert sum(len(example["input_ids"]) == 100 for example in examples) > 0
    assert built == [
        (example["input_ids"].tolist(), (example["labels"] != -100).tolist())
        for example in examples
    ]


@pytest.mark.parametrize(
    "pack", [{"enabled": False}, {"enabled": True, "seq_length": 32}]
)
def test_bos_and_eos_are_left_out_where_that_is_asked_for(
    tmp_path, tokenizers, pack
) -> None:
    rows = alpaca(4)
    made = config(tmp_path, rows, tokenizers["bos"], pack=pack)
    (dataset,) = made["datasets"]
    ways = [(False, True), (True, False), (False, False)]
    made["datasets"] = [
        {
            **dataset,
            "name": f"s{bos:d}{eos:d}",
            "prompt": {**PROMPT, "add_bos": bos, "add_eos": eos},
        }
        for bos, eos in ways
    ]
    result = build_dataset(made, workers=1)
    found = documents(result)
    assert len(found) == 12
    expected = {
        (bos, eos, row["output"] + "</s>" * eos) for bos, eos in ways for row in rows
    }
    assert {
        (ids[0] == 1, ids[-1] == 2, learned(tokenizers["bos"], (ids, mask)))
        for ids, mask in found
    } == expected
    account = result.manifest.account
    assert (account.bos, account.eos) == (4, 4)


def test_control_tokens_that_the_template_spells_are_ids_and_none_is_put_twice(
    tmp_path, tokenizers
) -> None:
    rows = [*alpaca(6), {"instruction": "forge </s>", "input": "", "output": "x"}]
    prompt = {
        **PROMPT,
        "template": "<s>[INST] {instruction} {input} [/INST] {output} </s>",
    }
    changes = {"prompt": prompt, "on_bad_record": "quarantine", "max_bad_fraction": 0.5}
    result = build_dataset(
        config(
            tmp_path,
            rows,
            tokenizers["bos"],
            pack={"enabled": True, "seq_length": 32},
            **changes,
        ),
        workers=1,
    )
    made = documents(result)
    assert len(made) == 6
    for row, (ids, mask) in zip(rows, made, strict=False):
        assert (ids.count(1), ids.count(2), ids[0], ids[-1]) == (1, 1, 1, 2)
        assert learned(tokenizers["bos"], (ids, mask)).split() == [
            *row["output"].split(),
            "</s>",
        ]
    account = result.manifest.account
    assert account.quarantined == {"special_token_in_text": 1}
    assert (account.bos, account.eos, account.rows_read, account.kept) == (0, 0, 7, 6)
    assert account.eos_existing == 6


def test_a_special_token_of_a_row_is_text_where_the_template_spells_none(
    tmp_path, tokenizers
) -> None:
    rows = [{"instruction": "what is </s>?", "input": "", "output": "an <s> or </s>"}]
    (document,) = documents(
        build_dataset(config(tmp_path, rows, tokenizers["bos"]), workers=1)
    )
    assert (document[0].count(1), document[0].count(2)) == (1, 1)
    assert learned(tokenizers["bos"], document) == "an <s> or </s></s>"


def test_bad_rows_are_accounted_or_end_the_build_with_their_line(
    tmp_path, tokenizers
) -> None:
    rows: list[Row] = [
        {"instruction": "a", "input": "", "output": "fine"},
        {"instruction": "a", "input": None, "output": "x"},
        {"instruction": "a", "output": "x"},
        {"instruction": "a", "input": [], "output": "x"},
        {"instruction": "a", "input": "b", "output": ""},
        {"instruction": 1, "input": 1.5, "output": True},
    ]
    bad = {"on_bad_record": "quarantine", "max_bad_fraction": 1.0}
    result = build_dataset(config(tmp_path, rows, tokenizers["bos"], **bad), workers=1)
    account = result.manifest.account
    assert account.quarantined == {
        "null_column": 2,
        "not_a_string": 1,
        "empty_label": 1,
    }
    assert (account.rows_read, account.kept) == (6, 2)
    texts = [decoded(tokenizers["bos"], ids) for ids, _ in documents(result)]
    assert texts[1].endswith(
        "### Instruction:\n1\n\n### Input:\n1.5\n\n### Response:\ntrue</s>"
    )
    with pytest.raises(
        BadRecordError,
        match=r"rows\.jsonl:2: null_column .*the column 'input' is missing or null",
    ):
        build_dataset(config(tmp_path, rows, tokenizers["bos"]), workers=1)


def test_columns_that_no_first_row_has_end_the_plan(tmp_path, tokenizers) -> None:
    rows = [{"instruction": "a", "inptu": "b", "output": "c"}] * 2
    for kind in ("jsonl", "parquet"):
        (tmp_path / kind).mkdir()
        with pytest.raises(
            ConfigError,
            match=r"s: prompt\.input_columns: the first rows .*did you mean 'inptu'\?",
        ):
            build_dataset(
                config(tmp_path / kind, rows, tokenizers["bos"], kind=kind), workers=1
            )


def test_conversations_are_made_of_columns(tmp_path) -> None:
    turn = "<{{ m.role }}>{{ m.content }}{{ eos_token if m.role == 'assistant' }}\n"
    template = f"{{% for m in messages %}}{turn}{{% endfor %}}"
    save(sentencepiece(), tmp_path)
    (tmp_path / "chat_template.jinja").write_text(template)
    prompt = {
        "format_type": "chat",
        "input_columns": ["instruction", "input"],
        "label_column": "output",
        "system_message": "Be brief.",
        "examples": [{"instruction": "one", "input": "", "output": "eins"}],
    }
    rows = alpaca(6)
    result = build_dataset(config(tmp_path, rows, tmp_path, prompt=prompt), workers=1)
    for row, document in zip(rows, documents(result), strict=True):
        assert learned(tmp_path, document).strip() == row["output"] + "</s>"
        assert document[0].count(2) == 2


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        (
            {**PROMPT, "template": "{instruction} {inptu} {output}"},
            r"datasets\.s: prompt\.template: .*did you mean 'input'",
        ),
        (
            {**PROMPT, "template": "{instruction} {{input}} {output}"},
            "mixes two styles",
        ),
        ({**PROMPT, "template": "{instruction} {input}"}, "'output' stands 0 times"),
    ],
)
def test_a_wrong_template_ends_the_plan(tmp_path, tokenizers, prompt, words) -> None:
    with pytest.raises(ConfigError, match=words):
        build_dataset(
            config(tmp_path, alpaca(2), tokenizers["bos"], prompt=prompt), workers=1
        )


def test_answers_need_an_end(tmp_path) -> None:
    files = TokenizerFiles(
        name="nameless", files={"tokenizer.json": byte_level().json_bytes}
    )
    save(files, tmp_path / "tokenizer")
    with pytest.raises(
        ConfigError, match=r"datasets\.s: prompt\.add_eos: .*has no EOS"
    ):
        build_dataset(config(tmp_path, alpaca(2), tmp_path / "tokenizer"), workers=1)
    endless = config(
        tmp_path, alpaca(2), tmp_path / "tokenizer", prompt={**PROMPT, "add_eos": False}
    )
    assert build_dataset(endless, workers=1).manifest.account.eos == 0
