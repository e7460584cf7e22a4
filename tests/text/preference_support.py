"""Tokenizers for preferences, and what a row must come to, by `tokenizers` and plain
loops alone.
"""

from __future__ import annotations

import functools
from typing import Any

from tests.tokenizer_reference import ReferenceTokenizer
from tests.tokenizers import tokenizer_samples as samples
from tokenlake.etl.tokenizers import TokenizerFiles

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token }}[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content }} {{ eos_token }}{% endif %}{% endfor %}"
)
Row = dict[str, Any]


@functools.cache
def chatml() -> TokenizerFiles:
    """A GPT-2-style tokenizer without BOS, whose turns end with its EOS and a line
    break.
    """
    names = ("<|im_start|>", "<|im_end|>")
    size = samples.byte_level().vocab_size
    flags = {
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }

    def add(spec: Row) -> None:
        spec["added_tokens"] += [
            {"id": size + i, "content": name, **flags} for i, name in enumerate(names)
        ]

    return _configured(
        samples.changed(samples.byte_level(), add),
        {"eos_token": "<|im_end|>", "chat_template": CHATML},
    )


@functools.cache
def llama() -> TokenizerFiles:
    """A Llama-2-style tokenizer, whose BOS and EOS its template spells itself."""
    config = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "chat_template": LLAMA,
    }
    return _configured(samples.sentencepiece(), config)


def _configured(files: TokenizerFiles, config: Row) -> TokenizerFiles:
    return samples.from_spec(files.spec, name="sample", config=config)


class Reference:
    """What must come out, computed one row at a time."""

    def __init__(self, files: TokenizerFiles) -> None:
        self.tokenizer = ReferenceTokenizer(files.json_bytes)
        self.eos = files.eos_id
        probe = self.tokenizer.encode("a").ids
        self.bos = probe[: probe.index(self.ids("a")[0])]
        self.template: Any = files.config.get("chat_template")
        self.named = {
            "bos_token": files.bos_token or "",
            "eos_token": files.eos_token or "",
        }

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def chat(self, turns: list[Row], *, open_turn: bool = False) -> str:
        import jinja2

        made = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(
            self.template
        )
        return made.render(
            messages=turns, add_generation_prompt=open_turn, **self.named
        )

    def opened(self, ids: list[int]) -> list[int]:
        """Begin with BOS, once."""
        return ids if ids[: len(self.bos)] == self.bos else [*self.bos, *ids]

    def closed(self, ids: list[int]) -> list[int]:
        """End with EOS, where there is none."""
        return ids if self.eos in ids else [*ids, self.eos]

    def parts(self, prompt: str, *answers: str) -> list[list[int]]:
        """Return the prompt's ids, then each answer's: together those of the whole
        text.
        """
        first, wholes = (
            self.ids(prompt),
            [self.ids(prompt + answer) for answer in answers],
        )
        border = 0
        while border < len(first) and all(
            whole[border : border + 1] == [first[border]] for whole in wholes
        ):
            border += 1
        return [
            self.opened(first[:border]),
            *(self.closed(whole[border:]) for whole in wholes),
        ]

    def whole(self, text: str) -> list[int]:
        return self.closed(self.opened(self.ids(text)))


def together(prompt: list[int], answer: list[int], name: str) -> Row:
    """Return the columns in which an answer stands with its prompt."""
    return {
        f"{name}_input_ids": [*prompt, *answer],
        f"{name}_attention_mask": [1] * (len(prompt) + len(answer)),
        f"{name}_labels": [-100] * len(prompt) + answer,
    }


def prompt_columns(prompt: list[int]) -> Row:
    return {"prompt_input_ids": prompt, "prompt_attention_mask": [1] * len(prompt)}
