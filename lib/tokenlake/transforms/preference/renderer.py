"""Rows of preferences to texts: of a prompt, and of the prompt with each of its answers."""

from __future__ import annotations

from functools import cached_property
from itertools import compress
from typing import Any, Final, final

import numpy as np
import pyarrow as pa

from tokenlake.config.resolved_texts import ResolvedPreference
from tokenlake.errors import ConfigError
from tokenlake.faults import Fault
from tokenlake.preferences import text_weights
from tokenlake.rows import Rows
from tokenlake.templates.assembling import texts_in
from tokenlake.tokenizers import TokenizerFiles
from tokenlake.transforms.chat.forging import ForgeryScan
from tokenlake.transforms.preference.conversation import ConversationTexts
from tokenlake.transforms.preference.judgement import Given, Judgement, judgements
from tokenlake.transforms.preference.turns import Value, tools_of, value_of
from tokenlake.transforms.rendering import Rendered

_ARROW: Final[Any] = pa
_FIELDS: Final = ("prompt", "chosen", "rejected", "completion")


@final
class PreferenceRenderer:
    """Makes the texts of a document: of dpo, orpo, cpo ``prompt, prompt + chosen, prompt + rejected``; of kto, bco
    ``prompt, prompt + completion``; of reward both whole texts; of grpo the prompt.

    Args:
        special_tokens_in_text: ``fail``: rows whose own text spells a special token are bad; ``encode``: it becomes
            one; ``literal``: it stays text, which conversations, whose template spells its own, cannot have.
    """

    def __init__(
        self, settings: ResolvedPreference, files: TokenizerFiles, special_tokens_in_text: str
    ) -> None:
        self._settings, self._files, self._special = settings, files, special_tokens_in_text
        self._scan = ForgeryScan.of(files)
        self._names = {name: getattr(settings, f"{name}_field") for name in (*_FIELDS, "label", "tools")}

    @property
    def control_tokens(self) -> bool:
        return self._special != "literal"

    @property
    def columns(self) -> tuple[str, ...] | None:
        # A row need not have all of the fields, and a reader refuses a column that is not there.
        return None

    def render(self, rows: Rows) -> Rendered:
        """Return the texts; rows that cannot be used are bad (see :func:`judgements`)."""
        texts: list[str] = []
        own: list[Any] = []
        origin: list[int] = []
        labels: list[bool] = []
        bad: dict[int, Fault] = {}
        for index, given in enumerate(self._given(rows)):
            made = given if isinstance(given, Fault) else self._texts(given)
            if isinstance(made, Fault):
                bad[index] = made
                continue
            for judgement, parts, said in made:
                texts += parts
                own.append(said)
                origin.append(index)
                labels.append(bool(judgement.label))
        for at, fault in self._unfit(own).items():
            bad.setdefault(origin[at], fault)
        return self._rendered(texts, origin, labels, bad)

    def _rendered(
        self, texts: list[str], origin: list[int], labels: list[bool], bad: dict[int, Fault]
    ) -> Rendered:
        parts = len(text_weights(self._settings.method))
        keep = np.array([index not in bad for index in origin], np.bool_)
        if not keep.all():
            texts = list(compress(texts, np.repeat(keep, parts).tolist()))
        array = _ARROW.array(texts, pa.large_string())
        return Rendered(
            text=array,
            origin=np.array(origin, np.int64)[keep],
            bad=tuple(sorted(bad.items())),
            parts=parts,
            label=np.array(labels, np.bool_)[keep] if self._settings.method in ("kto", "bco") else None,
        )

    def _given(self, rows: Rows) -> list[Given | Fault]:
        columns = {name: rows.values(path) for name, path in self._names.items()}
        found: list[Given | Fault] = []
        for at in range(len(rows)):
            values = {name: value_of(columns[name][at], self._names[name]) for name in _FIELDS}
            fault = next((value for value in values.values() if isinstance(value, Fault)), None)
            fields: Any = values
            tools = tools_of(columns["tools"][at])
            fault = fault or (tools if isinstance(tools, Fault) else None)
            found.append(fault or Given(**fields, label=columns["label"][at], tools=tools))
        return found

    def _texts(self, given: Given) -> list[tuple[Judgement, list[str], Any]] | Fault:
        """Return each document's texts, and its row's own words."""
        found = judgements(given, self._settings.method)
        if isinstance(found, Fault):
            return found
        made: list[tuple[Judgement, list[str], Any]] = []
        for judgement in found:
            texts = self._parts(judgement, given.tools)
            if isinstance(texts, Fault):
                return texts
            made.append((judgement, texts, _own(judgement)))
        return made

    def _parts(self, judgement: Judgement, tools: Any) -> list[str] | Fault:
        prompt, answers = judgement.prompt, judgement.answers
        values: tuple[Value | None, ...] = (prompt, *answers)
        if any(isinstance(value, list) for value in values):
            if self._special == "literal":
                raise ConfigError(
                    "special_tokens_in_text: literal is for texts, but rows hold conversations, whose template spells "
                    "special tokens itself; use fail (such rows are bad records) or encode"
                )
            whole = self._conversations.texts(prompt, answers, tools)
        else:
            whole = [str(prompt), *(f"{prompt or ''}{answer}" for answer in answers)]
        return whole[1:] if self._settings.method == "reward" and not isinstance(whole, Fault) else whole

    def _unfit(self, own: list[Any]) -> dict[int, Fault]:
        """Return what cannot be encoded, or must not be: special tokens in a row's own text, half characters."""
        if self._special == "fail":
            return self._scan.faults(own)
        return {
            at: Fault("invalid_utf8", "a text holds half of a surrogate pair")
            for at, said in enumerate(own)
            if not all(map(_is_utf8, texts_in(said)))
        }

    @cached_property
    def _conversations(self) -> ConversationTexts:
        return ConversationTexts(self._settings, self._files)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _own(judgement: Judgement) -> Any:
    """All that the row itself says; a text with its answer in one piece, for the border may lie inside a token."""
    prompt, answers = judgement.prompt, judgement.answers
    if isinstance(prompt, list) or any(isinstance(answer, list) for answer in answers):
        return [prompt, *answers]
    return [f"{prompt or ''}{answer}" for answer in answers or ("",)]
