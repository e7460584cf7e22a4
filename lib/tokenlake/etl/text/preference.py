"""Rows of preferences, a prompt and answers that were compared or judged, become texts, of the prompt and of the prompt
with each of its answers; and, for a trainer that tokenizes while it reads, rows of ids.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import fields as fields_of
from functools import cached_property, partial
from itertools import chain
from typing import Any, Final, Literal, NoReturn, cast, final

import numpy as np
import pyarrow as pa

from tokenlake.base.checks import require_one_of
from tokenlake.base.columns import IGNORED, METHODS, TRAINERS, Method, Trainer, text_weights
from tokenlake.config.resolved import ResolvedPreference
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.etl.sources.bad_records import Fault
from tokenlake.etl.sources.rows import Row, Rows
from tokenlake.etl.text.chat_messages import ConversationReader, Turn, in_field, tools_of
from tokenlake.etl.text.chat_renderer import Chat, Conversations, SpecialTokenGuard
from tokenlake.etl.text.chat_template import (
    DEFAULT,
    ChatTemplate,
    check_mode,
    named_tokens,
    no_template,
    shared_length,
    templates_of,
)
from tokenlake.etl.text.chat_weights import BAD_WEIGHT, is_learned
from tokenlake.etl.text.preference_ids import Joiner, preference_batch
from tokenlake.etl.text.renderer import Rendered
from tokenlake.etl.text.transform import ExpandTransform, fault_of
from tokenlake.etl.tokenizers.encoder import Encoder
from tokenlake.etl.tokenizers.files import TokenizerFiles, files_of

_ARROW: Final[Any] = pa
_FIELDS: Final = ("prompt", "chosen", "rejected", "completion")

Value = str | list[Turn]
"""A text, or the turns of a conversation (role, content)."""

READER: Final = ConversationReader()
_LAST_WORD: Final = re.compile(r"\s*\S+\s*\Z")


@final
@dataclass(frozen=True, slots=True)
class Judgement:
    """A prompt with its answers: all of them texts, or all of them conversations.

    Attributes:
        prompt: None where a text stands for itself (reward models).
        answers: (chosen, rejected), (completion,), or none for prompts alone.
        label: whether a judged answer is good.
    """

    prompt: Value | None
    answers: tuple[Value, ...] = ()
    label: bool = False

    @property
    def is_conversation(self) -> bool:
        """Whether prompt and answers are conversations."""
        return any(isinstance(value, list) for value in (self.prompt, *self.answers))


def value_of(raw: object, field: str) -> Value | None:
    """Return a field's value; None where it is missing or null.

    Raises:
        BadRecordError: it is neither text nor turns.
    """
    if raw is None or isinstance(raw, str):
        return raw
    if not isinstance(raw, list):
        unusable(
            "not_text_or_messages",
            f"the field {field!r} holds {type(raw).__name__}, expected a text or a list of messages",
        )
    with in_field(field):
        return READER.read(cast("list[Any]", raw)) if raw else []


def judgements(given: Mapping[str, Value | None], label: object, method: Method) -> tuple[Judgement, ...]:
    """Return what a row comes to: one, or two of a pair whose answers are wanted one by one.

    Args:
        given: prompt, chosen, rejected and completion, None where the row lacks them.

    Raises:
        BadRecordError: nothing that `method` can use.
    """
    if method == "grpo":
        return (_prompt_alone(given),)
    if method not in ("kto", "bco"):
        return (_pair(given, whole=method == "reward"),)
    if given["completion"] is not None:
        return (_judged(given["prompt"], given["completion"], label),)
    pair = _pair(given, whole=False)
    good, bad = pair.answers
    return Judgement(pair.prompt, (good,), True), Judgement(pair.prompt, (bad,), False)


def _prompt_alone(given: Mapping[str, Value | None]) -> Judgement:
    prompt = given["prompt"]
    if prompt is None:
        if given["chosen"] is None or given["rejected"] is None:
            unusable("missing_field", "the row has no prompt, and no pair of answers to take one from")
        prompt = _pair(given, whole=False).prompt
    if prompt is None or _is_empty(prompt):
        unusable("empty_prompt", "the prompt is empty")
    if not isinstance(prompt, str) and prompt[-1]["role"] == "assistant":
        unusable(
            "prompt_is_answered", "the prompt ends with an assistant's turn, so nothing is left to answer"
        )
    return Judgement(prompt)


def _judged(prompt: Value | None, completion: Value, label: object) -> Judgement:
    if prompt is None and not isinstance(completion, str) and len(completion) > 1:
        prompt, completion = completion[:-1], completion[-1:]
    if prompt is None:
        unusable("no_prompt", "the row has an answer, but no prompt")
    if not isinstance(label, bool) and label not in (0, 1):
        unusable("bad_label", f"the label is {label!r}, expected true or false")
    return _in_one_form(prompt, (completion,), label=bool(label))


def _pair(given: Mapping[str, Value | None], *, whole: bool) -> Judgement:
    """Read chosen and rejected; `whole`: a prompt that the answers hold already is not looked for."""
    prompt, chosen, rejected = given["prompt"], given["chosen"], given["rejected"]
    if chosen is None or rejected is None:
        lacking = " and ".join(name for name in ("chosen", "rejected") if given[name] is None)
        unusable("missing_field", f"the row has no answer {lacking}")
    if isinstance(chosen, str) != isinstance(rejected, str):
        unusable("unlike_answers", "one answer is a text, the other a conversation")
    if chosen == rejected:
        unusable("equal_answers", "the better answer equals the worse one")
    if prompt is None and not whole:
        if isinstance(chosen, str):
            size = shared_text(chosen, str(rejected))
        else:  # at least one turn is left to each
            most = max(min(len(chosen), len(rejected)) - 1, 0)
            size = next((at for at in range(most) if chosen[at] != rejected[at]), most)
        if not size:
            unusable("no_prompt", "the row has no prompt, and its answers do not begin alike")
        return _filled(Judgement(chosen[:size], (chosen[size:], rejected[size:])))
    if prompt is None:
        return _filled(Judgement(None, (chosen, rejected)))
    return _in_one_form(prompt, (chosen, rejected))


def _in_one_form(prompt: Value, answers: tuple[Value, ...], *, label: bool = False) -> Judgement:
    """Bring prompt and answers into one form: conversations, where one of them is one.

    Answers that are conversations often hold their prompt too; it is taken off where all of them begin with it.
    """
    found = Judgement(prompt, answers, label)
    if found.is_conversation:
        values = (("user", prompt), *(("assistant", answer) for answer in answers))
        turns, *said = (
            [{"role": role, "content": value}] if isinstance(value, str) else value for role, value in values
        )
        if all(len(answer) > len(turns) and answer[: len(turns)] == turns for answer in said):
            said = [answer[len(turns) :] for answer in said]
        found = Judgement(turns, tuple(said), label)
    return _filled(found)


def _filled(judgement: Judgement) -> Judgement:
    if judgement.prompt is not None and _is_empty(judgement.prompt):
        unusable("empty_prompt", "the prompt is empty")
    if any(map(_is_empty, judgement.answers)):
        unusable("empty_answer", "an answer is empty")
    return judgement


def _require_learned(judgement: Judgement) -> None:
    """Require that no turn of an answer says that it is not learned: answers are compared as a whole.

    Raises:
        BadRecordError: one says so (``bad_weight``).
    """
    for answer in judgement.answers:
        for turn in answer if isinstance(answer, list) else ():
            if is_learned(turn) is False:
                unusable(
                    BAD_WEIGHT,
                    "a turn of an answer is not to be learned (weight: 0, train: false, loss: false or masked: true), "
                    "but preferences compare whole answers; take that field out, or the turn",
                )


def _is_empty(value: Value) -> bool:
    """Say whether a text is blank, or a conversation has no turn that says or calls anything."""
    if isinstance(value, str):
        return not value.strip()
    return not any(
        str(turn.get("content") or "").strip() or len(turn) > len(("role", "content")) for turn in value
    )


def shared_text(left: str, right: str) -> int:
    """Return how many characters two texts begin with alike, up to the end of a word.

    The blanks after that word belong to the answers, and so does a word that only begins alike: tokenizers put a
    word's blank before it. Each text keeps at least one word. Scripts without blanks are cut between characters.
    """
    end = shared_length(left, right)
    shorter = min(len(left.rstrip()), len(right.rstrip()))
    if end >= shorter:
        found = _LAST_WORD.search(left[:shorter])
        end = found.start() if found else 0
    while end and (_inside_word(left, end) or _inside_word(right, end)):
        end -= 1
    return len(left[:end].rstrip())


def _inside_word(text: str, at: int) -> bool:
    """Whether a place is inside a word that blanks separate: of digits, or letters of a script with capitals."""
    if at >= len(text):
        return False
    around = text[at - 1], text[at]
    bound = all(character.isdigit() or character.lower() != character.upper() for character in around)
    return bound or bool(unicodedata.combining(text[at]))


def unusable(reason: str, why: str) -> NoReturn:
    """Raise the BadRecordError of a row that cannot be used."""
    raise BadRecordError(why, reason=reason)


_Document = tuple[int, Judgement, list[Any] | None]
"""A row, what one document of it is made of, and the tools."""


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
        self._guard = SpecialTokenGuard.of(files, special_tokens_in_text)
        self.control_tokens: Final = special_tokens_in_text != "literal"
        # A row need not have all of the fields, and a reader refuses a column that is not there.
        self.columns: Final = None

    def render(self, rows: Rows) -> Rendered:
        """Return the texts; rows that cannot be used are bad (see :func:`judgements`)."""
        documents, bad = self._documents(rows)
        texts, owned = self._texts(documents), list[Any]()
        for (row, judgement, _), made in zip(documents, texts, strict=True):
            if isinstance(made, Fault):
                bad.setdefault(row, made)
            # All that the row itself says; a text with its answer in one piece: the border may lie inside a token.
            own = [judgement.prompt, *judgement.answers]
            first = 1 if judgement.answers else 0
            owned.append(own if judgement.is_conversation else _plain(judgement)[first:])
        for at, fault in self._guard.faults(owned).items():
            bad.setdefault(documents[at][0], fault)
        kept = [at for at, (row, _, _) in enumerate(documents) if row not in bad]
        judged = self._settings.method in ("kto", "bco")
        return Rendered(
            text=_ARROW.array(
                chain.from_iterable(cast("list[str]", texts[at]) for at in kept), pa.large_string()
            ),
            origin=np.array([documents[at][0] for at in kept], np.int64),
            bad=tuple(sorted(bad.items())),
            parts=len(text_weights(self._settings.method)),
            label=np.array([documents[at][1].label for at in kept], np.bool_) if judged else None,
        )

    def _documents(self, rows: Rows) -> tuple[list[_Document], dict[int, Fault]]:
        names = {name: getattr(self._settings, f"{name}_field") for name in (*_FIELDS, "label", "tools")}
        columns = {name: rows.values(path) for name, path in names.items()}
        found: list[_Document] = []
        bad: dict[int, Fault] = {}
        for row in range(len(rows)):
            try:
                given = {name: value_of(columns[name][row], names[name]) for name in _FIELDS}
                tools = tools_of(columns["tools"][row])
                made = judgements(given, columns["label"][row], self._settings.method)
                for judgement in made:
                    _require_learned(judgement)
            except BadRecordError as error:
                bad[row] = fault_of(error)
            else:
                found += [(row, judgement, tools) for judgement in made]
        return found, bad

    def _texts(self, documents: Sequence[_Document]) -> list[list[str] | Fault]:
        """Return each document's texts, or why it has none."""
        chats = [document for document in documents if document[1].is_conversation]
        rendered = iter(self._conversations(chats) if chats else ())
        first = 1 if self._settings.method == "reward" else 0
        found: list[list[str] | Fault] = []
        for _, judgement, _ in documents:
            made = next(rendered) if judgement.is_conversation else _plain(judgement)
            found.append(made if isinstance(made, Fault) else made[first:])
        return found

    def _conversations(self, documents: Sequence[_Document]) -> list[list[str] | Fault]:
        """Return the text of each prompt, and of the prompt with each answer.

        A prompt ends with what begins the assistant's turn, where that is whose turn it is.
        """
        asked: dict[bool, list[Chat]] = {False: [], True: []}
        places: list[list[tuple[bool, int]]] = []
        for _, judgement, tools in documents:
            turns = cast("list[Turn]", judgement.prompt or [])
            answers = cast("tuple[list[Turn], ...]", judgement.answers)
            begins = all(answer[0]["role"] == "assistant" for answer in answers)
            places.append([])
            for prompt, messages in ((begins, turns), *((False, [*turns, *answer]) for answer in answers)):
                places[-1].append((prompt, len(asked[prompt]) if messages else -1))
                asked[prompt] += [(messages, tools)] if messages else []
        made: dict[bool, dict[int, str | Fault]] = {}
        for prompt, chats in asked.items():
            messages, tools = [chat[0] for chat in chats], [chat[1] for chat in chats]
            texts = self._templates[prompt].render(messages, tools, chats.__getitem__)
            made[prompt] = dict(zip(texts.origin.tolist(), map(str, texts.text), strict=True)) | dict(
                texts.bad
            )
        return [_continued([made[prompt].get(at, "") for prompt, at in place]) for place in places]

    @cached_property
    def _templates(self) -> dict[bool, Conversations]:
        """The chat template, without and with what begins the assistant's turn.

        Raises:
            ConfigError: there is none, or it cannot be compiled.
        """
        check_mode(self._special)
        if self._settings.chat_template is None:
            raise ConfigError(f"preference: {no_template(self._files.name, [])}", tokenizer=self._files.name)
        found: dict[bool, Conversations] = {}
        for prompt in (False, True):
            variables = {**named_tokens(self._files), "add_generation_prompt": prompt}
            template = ChatTemplate(self._settings.chat_template, variables)
            found[prompt] = Conversations(template, READER.roles, SpecialTokenGuard())
        return found


def _plain(judgement: Judgement) -> list[str]:
    return [str(judgement.prompt), *(f"{judgement.prompt or ''}{answer}" for answer in judgement.answers)]


def _continued(texts: list[str | Fault]) -> list[str] | Fault:
    """Require that all texts are there, and that each begins with the first, the prompt."""
    for text in texts:
        if isinstance(text, Fault):
            return text
    whole = cast("list[str]", texts)
    if all(text.startswith(whole[0]) for text in whole):
        return whole
    told = "the chat template does not render the conversation as a continuation of its prompt"
    return Fault("prompt_not_a_beginning", told)


def settled_preference(settings: ResolvedPreference, files: TokenizerFiles) -> ResolvedPreference:
    """Return the settings with the tokenizer's chat template, where it has one.

    Raises:
        ConfigError: answers would have no end, because the tokenizer names no EOS.
    """
    if settings.method != "grpo" and files.eos_id is None:
        raise ConfigError(
            f"tokenizer {files.name!r} names no EOS token, by which a model learns where an answer ends; set "
            "eos_token in its tokenizer_config.json",
            tokenizer=files.name,
        )
    return replace(settings, chat_template=settings.chat_template or templates_of(files).get(DEFAULT))


@final
class PreferenceRows(ExpandTransform):
    """Rows of preferences to the rows that a trainer reads; equal to what a build makes of them.

    ``PreferenceRows("dpo", "org/model").expand({"prompt": ..., "chosen": ..., "rejected": ...})`` gives one row, with
    the ids of prompt and answers; a pair that is given to kto or bco becomes two. Rows that a length policy leaves
    out become none.

    Args:
        method: dpo, orpo, cpo, reward, kto, bco or grpo.
        tokenizer: a Hub id, a folder, a file, files that were read already, or a fast tokenizer of transformers.
        max_prompt_length: most ids of a prompt, which loses its beginning, but for BOS; None: any number. Rows for
            reward are whole texts, which have none.
        max_completion_length: most ids of an answer, which loses its end; None: any number.
        trainer: whose column names, ``easydel`` or ``trl``.
        max_length: most ids of a prompt with an answer; None: any number.
        tools: that conversations may call, of rows that name none.
        long_documents: of longer ones ``truncate`` cuts the answers at their ends, ``drop`` leaves the row out.
        special_tokens_in_text: ``fail``: a row that spells a special token is refused; ``encode``, ``literal``.
        fields: other names of the row's fields, such as ``prompt_field="question"``.

    Raises:
        ConfigError: an unknown name, or a tokenizer that lacks EOS or the chat template that rows need.
    """

    def __init__(
        self,
        method: Method,
        tokenizer: Any,
        max_prompt_length: int | None = None,
        max_completion_length: int | None = None,
        *,
        trainer: Trainer = "easydel",
        max_length: int | None = None,
        tools: Sequence[Any] | None = None,
        long_documents: Literal["truncate", "drop"] = "truncate",
        special_tokens_in_text: Literal["fail", "encode", "literal"] = "fail",
        **fields: str,
    ) -> None:
        require_one_of("method", method, METHODS)
        require_one_of("trainer", trainer, TRAINERS)
        require_one_of("long_documents", long_documents, ("truncate", "drop"))
        _check_preference(method, max_prompt_length, max_completion_length, fields)
        _require_positive("max_length", max_length)
        files = files_of(tokenizer)
        settings = settled_preference(ResolvedPreference(method=method, trainer=trainer, **fields), files)
        self._settings, self._tools = settings, tools
        self._renderer = PreferenceRenderer(settings, files, special_tokens_in_text)
        mode = "encode" if self._renderer.control_tokens else special_tokens_in_text
        self._encoder = Encoder(files, engine="tokenizers", special_tokens_in_text=mode)
        self._joiner = Joiner(
            method,
            self._encoder.prefix,
            -1 if files.eos_id is None else files.eos_id,
            max_length or 0,
            long_documents if max_length else "keep",
            max_prompt_length,
            max_completion_length,
        )

    def expand(self, example: Row) -> Sequence[dict[str, Any]]:
        """Return the rows made of `example`.

        Raises:
            BadRecordError: the row cannot be used.
        """
        field = self._settings.tools_field
        if self._tools is not None and example.get(field) is None:
            example = {**example, field: list(self._tools)}
        made = self._renderer.render(Rows(objects=[example]))
        if made.bad:
            fault = made.bad[0][1]
            raise BadRecordError(f"{fault.reason}: {fault.detail}", reason=fault.reason)
        encoded = self._encoder.encode(made.text)
        joined = self._joiner.join(encoded.ids, encoded.offsets)
        return preference_batch(self._settings, joined, made.label, made.text).to_pylist()


def _require_positive(name: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise ConfigError(f"{name} is {value}, expected a positive number, or None")


_NOT_TAKEN: Final = {
    "add_special_tokens": "a row begins and ends as the tokenizer and the method say; leave it out",
    "label_pad_token_id": f"labels are {IGNORED} where nothing is learned; leave it out",
    "embedding_tokenizer": "use a second PreferenceRows for a second tokenizer",
    "truncation": "say long_documents='truncate' or 'drop'",
}


def _check_preference(
    method: Method, prompt: int | None, completion: int | None, fields: dict[str, str]
) -> None:
    """Raise ConfigError for lengths that a method's rows have no part for, and for unknown names."""
    known = sorted(each.name for each in fields_of(ResolvedPreference) if each.name.endswith("_field"))
    for name in fields.keys() - set(known):
        how = _NOT_TAKEN.get(name, f"the fields are {', '.join(known)}")
        raise ConfigError(f"{name}: PreferenceRows takes no such argument; {how}", field_path=name)
    lengths = {"max_prompt_length": prompt, "max_completion_length": completion}
    lacks = {"reward": lengths, "grpo": {"max_completion_length": completion}}.get(method, {})
    for name, value in lengths.items():
        _require_positive(name, value)
        if value is not None and name in lacks:
            raise ConfigError(f"{name}: rows for {method} have no such part; leave it out, or use max_length")


DPOPreprocessTransform: Final = partial(PreferenceRows, "dpo")
ORPOPreprocessTransform: Final = partial(PreferenceRows, "orpo")
CPOPreprocessTransform: Final = partial(PreferenceRows, "cpo")
KTOPreprocessTransform: Final = partial(PreferenceRows, "kto")
BCOPreprocessTransform: Final = partial(PreferenceRows, "bco")
RewardPreprocessTransform: Final = partial(PreferenceRows, "reward")
GRPOPreprocessTransform: Final = partial(PreferenceRows, "grpo")
