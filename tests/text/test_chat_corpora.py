"""Real conversations by a real chat template: the ids, masks and BOS of transformers."""

from __future__ import annotations

import gzip
import json
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenlake
from tests.builds import config_of
from tests.text.support import documents
from tokenlake.config.resolved import ResolvedChat
from tokenlake.etl.runner import build_dataset
from tokenlake.sources.rows import Rows
from tokenlake.text.chat.renderer import ChatRenderer
from tokenlake.text.chat.tokenizer_template import templates_of
from tokenlake.tokenizers.encoder import Encoder
from tokenlake.tokenizers.files import load_tokenizer

COUNT = 24


@pytest.fixture
def folder(shared_data: Path) -> Path:
    """The real tokenizer of Llama 2."""
    (found,) = (shared_data / "hf/hub/models--meta-llama--Llama-2-7b-chat-hf/snapshots").iterdir()
    return found


def first_lines(shared_data: Path, count: int) -> list[str]:
    with gzip.open(shared_data / "corpora" / "math-chat.jsonl.gz", "rt") as lines:
        return [line.rstrip("\n") for line in islice(lines, count)]


@pytest.mark.corpora
def test_llama_2_chats_have_the_ids_masks_and_bos_of_transformers(
    shared_data: Path, folder: Path, tmp_path: Path
):
    from transformers import AutoTokenizer

    lines = first_lines(shared_data, COUNT)
    (tmp_path / "chat.jsonl").write_text("\n".join(lines))
    config = config_of(tmp_path, tmp_path / "chat.jsonl", folder) | {"tokenize": {"max_length": 8192}}
    made = documents(build_dataset(config, workers=1))
    theirs = AutoTokenizer.from_pretrained(folder)
    for line, (ids, mask) in zip(lines, made, strict=True):
        messages = json.loads(line)["messages"]
        expected = theirs.apply_chat_template(
            messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        assert ids == expected["input_ids"]
        assert [int(learned) for learned in mask] == expected["assistant_masks"]
        # This template spells BOS before every user's turn; the post-processor adds none of its own.
        assert (ids[0], ids.count(theirs.bos_token_id)) == (1, sum(m["role"] == "user" for m in messages))
        said = [message["content"].strip() for message in messages if message["role"] == "assistant"]
        learned = theirs.decode(np.array(ids)[np.array(mask)].tolist(), skip_special_tokens=False)
        assert [text.strip() for text in learned.split("</s>")[:-1]] == said


@pytest.mark.corpora
def test_without_its_marks_the_real_template_teaches_the_same(shared_data: Path, folder: Path):
    files = load_tokenizer(folder)
    marked = templates_of(files).get("default")
    assert marked is not None
    lines = first_lines(shared_data, 100)
    rows = Rows(objects=[json.loads(line) for line in lines])
    unmarked = marked.replace("{% generation %}", "").replace("{% endgeneration %}", "")
    first, second = (
        ChatRenderer(ResolvedChat(template=text, messages_field="messages"), files, "fail").render(rows)
        for text in (marked, unmarked)
    )
    assert first.text.equals(second.text)
    assert first.spans is not None
    assert second.spans is not None
    assert first.spans.start.tolist() == second.spans.start.tolist()
    assert first.spans.stop.tolist() == second.spans.stop.tolist()
    text = tokenlake.ChatTemplateTransform(folder)(rows.objects[0])["text"]
    assert text == first.text[0].as_py()


PHI3 = """\
{% for m in messages %}{% if m.role == 'assistant' %}{{ '<|assistant|>\\n' }}\
{% generation %}{{ m.content + '<|end|>\\n' }}{% endgeneration %}\
{% else %}{{ '<|' + m.role + '|>\\n' + m.content + '<|end|>\\n' }}{% endif %}{% endfor %}{{ eos_token }}"""
ANSWERS = st.one_of(
    st.sampled_from(
        ["Hi", " Hi", "  two", "\nHi", "\n\n Hi", "\u2003em", "😀", "日本語", "e\u0301", "\u2581a"]
    ),
    st.text("ab \n\t.é😀日\u2003\u2581", min_size=1, max_size=12).filter(str.strip),
)


@pytest.mark.corpora
@pytest.mark.parametrize("before", ["<|assistant|>\\n", "<|assistant|> ", "</s>", "</s>\\n", ""])
@pytest.mark.parametrize("engine", ["gigatoken", "tokenizers"])
def test_masks_of_marks_are_those_of_transformers(folder: Path, before: str, engine: str):
    from transformers import PreTrainedTokenizerFast

    files = load_tokenizer(folder)
    # AutoTokenizer puts other blanks behind special tokens than the tokenizer's own file.
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), eos_token="</s>")
    template = PHI3.replace("<|assistant|>\\n", before)
    renderer = ChatRenderer(ResolvedChat(template=template, messages_field="messages"), files, "fail")
    encoder = Encoder(files, engine=engine, special_tokens_in_text="encode", add_special_tokens=False)

    @settings(max_examples=40, deadline=None, database=None)
    @given(st.lists(st.tuples(ANSWERS, ANSWERS), min_size=1, max_size=3))
    def check(turns: list[tuple[str, str]]) -> None:
        roles = ("user", "assistant")
        messages = [
            {"role": role, "content": text} for turn in turns for role, text in zip(roles, turn, strict=True)
        ]
        made = renderer.render(Rows(objects=[{"messages": messages}]))
        assert made.spans is not None
        encoded, mask = encoder.encode_spans(made.text, made.spans)
        expected = theirs.apply_chat_template(
            messages,
            chat_template=template,
            tokenize=True,
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        assert encoded.ids.tolist() == expected["input_ids"]
        assert mask.astype(int).tolist() == expected["assistant_masks"]

    check()
