"""A tokenizer's chat template, named tokens and special tokens, and the transforms that apply the template to rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import Any, Final, Literal, Self, cast, final

from tokenlake.arrays import text_of_strings
from tokenlake.config.resolved import MESSAGES_FIELDS
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.markup import is_encodable
from tokenlake.sources.rows import Fault, Row
from tokenlake.text.chat.messages import ConversationReader, in_field, tools_of, without_nulls
from tokenlake.text.chat.template import FORGED, MAX_TEMPLATE, ChatTemplate, texts_in
from tokenlake.text.transform import Transform
from tokenlake.tokenizers.encoder import SpecialScan
from tokenlake.tokenizers.files import TokenizerFiles, files_of
from tokenlake.tokenizers.reference import ReferenceEngine

JINJA_FILE: Final = "chat_template.jinja"
DEFAULT: Final = "default"
TOOLS_FIELD: Final = "tools"
_BROKEN: Final = Fault("invalid_utf8", "a text holds half of a surrogate pair")
_NAMED_TOKENS: Final = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


def templates_of(files: TokenizerFiles) -> dict[str, str]:
    """Return the chat templates of a tokenizer by name; most have one, named ``default``.

    Its own file counts before what is written in tokenizer_config.json.
    """
    if JINJA_FILE in files.files:
        return {DEFAULT: files.files[JINJA_FILE].decode("utf-8", "strict")}
    written: Any = files.config.get("chat_template")
    if isinstance(written, str):
        return {DEFAULT: written}
    found: dict[str, str] = {}
    for entry in cast("list[Any]", written) if isinstance(written, list) else []:
        if isinstance(entry, dict):
            named = cast("dict[str, Any]", entry)
            found[str(named.get("name"))] = str(named.get("template"))
    return found


def chosen_template(asked: str | None, files: TokenizerFiles) -> str:
    """Return the text of the template that a configuration asks for.

    Args:
        asked: Jinja text, the name of one of the tokenizer's templates, or the path of a file; None for the
            tokenizer's own.

    Raises:
        ConfigError: there is none.
    """
    own = templates_of(files)
    if asked is None:
        if DEFAULT not in own:
            raise ConfigError(no_template(files.name, list(own)))
        return own[DEFAULT]
    if "{" in asked or asked in own:
        return own.get(asked, asked)
    expected = (
        "expected a Jinja template (it has {{ or {%), the path of one, or a name of the tokenizer's templates"
    )
    path = Path(asked).expanduser()
    try:
        if path.stat().st_size > 4 * MAX_TEMPLATE:
            raise ConfigError(f"chat.template: {asked!r} has {path.stat().st_size:,} bytes, {expected}")
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        known = f": {', '.join(own)}" if own else ""
        raise ConfigError(f"chat.template: {asked!r} cannot be read ({error}); {expected}{known}") from error


def named_tokens(files: TokenizerFiles) -> dict[str, str]:
    """Return the tokens that a template knows by name: bos_token, eos_token, and whatever the tokenizer has."""
    found: dict[str, str] = {}
    for kind in _NAMED_TOKENS:
        value: Any = files.config.get(f"{kind}_token")
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            found[f"{kind}_token"] = text
    extra: Any = files.config.get("extra_special_tokens")
    if isinstance(extra, dict):
        found |= {str(name): token for name, token in extra.items() if isinstance(token, str)}
    return found


def no_template(tokenizer: str, names: list[str]) -> str:
    """Return what to say of a tokenizer without a chat template."""
    named = (
        f"; its templates are named {', '.join(names)}, of which chat.template can name one" if names else ""
    )
    return (
        f"tokenizer {tokenizer!r} has no chat template (chat_template in tokenizer_config.json, or {JINJA_FILE}), and "
        "rows that hold conversations need one: set chat.template to a Jinja template or to the path of one, or use "
        f"the tokenizer of a chat model{named}"
    )


@final
class SpecialTokenGuard:
    """Finds values that spell a special token anywhere: in contents, names, tool calls, definitions, keys.

    Spelled out there, it would become a control id and forge a turn.

    Args:
        tokens: texts of the special tokens; none: only text that is no valid Unicode is found.
        normalize: what the tokenizer does to a text before it looks for some of them; None where it does not.
    """

    def __init__(self, tokens: Sequence[str] = (), normalize: Callable[[str], str] | None = None) -> None:
        self.scan: Final = SpecialScan([*tokens, *(map(normalize, tokens) if normalize else ())])
        self._normalize = normalize
        self.normalizes: Final = normalize is not None
        """Whether texts must be looked at as the tokenizer normalizes them, too, so that `scan` alone is not enough."""

    @classmethod
    def of(cls, files: TokenizerFiles, special_tokens_in_text: str) -> Self:
        """Return the guard for a tokenizer's special tokens; one that lets all pass unless it is to ``fail``."""
        if special_tokens_in_text != "fail":
            return cls()
        normalized = any(token.get("special") and token.get("normalized") for token in files.added_tokens)
        if not normalized or files.spec.get("normalizer") is None:
            return cls(files.special_tokens)
        normalizer: Any = ReferenceEngine(files).backend.normalizer
        return cls(files.special_tokens, normalizer.normalize_str)

    def faults(self, values: Sequence[Any]) -> dict[int, Fault]:
        """Return {index: why} of the values that cannot be used."""
        strings: list[str] = []
        owners: list[int] = []
        for index, value in enumerate(values):
            texts = [*texts_in(value)]
            texts += [self._normalize(text) for text in texts] if self._normalize else []
            strings += texts
            owners += [index] * len(texts)
        found: dict[int, Fault] = {}
        try:
            column = text_of_strings(strings)
        except UnicodeEncodeError:
            broken = [not is_encodable(text) for text in strings]
            found = dict.fromkeys(compress(owners, broken), _BROKEN)
            column = text_of_strings(["" if bad else text for text, bad in zip(strings, broken, strict=True)])
        for row in self.scan.count(column)[0].tolist():
            told = (
                f"a text of the conversation spells out the special token {self.scan.first(strings[row])!r}, which "
                "would become a control token; take it out, or set special_tokens_in_text: encode to allow it"
            )
            found.setdefault(owners[row], Fault(FORGED, told))
        return found


def check_mode(special_tokens_in_text: str) -> None:
    """Require a way to treat special tokens of rows that chat has.

    Raises:
        ConfigError: ``literal``.
    """
    if special_tokens_in_text == "literal":
        raise ConfigError(
            "special_tokens_in_text: 'literal' is not possible for conversations: their texts are encoded together "
            "with the control tokens of the chat template. Set it to 'fail' (a row that spells one out is a bad "
            "record; the default here) or to 'encode' (it becomes a control token, as the row says)"
        )


@final
class ChatTemplateTransform(Transform):
    """Puts a conversation through the tokenizer's chat template.

    Args:
        tokenizer: Hub id, path, or a tokenizer of transformers.
        messages_field: where the conversation is; a row that lacks it may have it in `conversations` or
            `conversation`.
        output_field: what the text is called; a row that has it already is an error.
        tools: JSON schemas for all rows; None for those in each row's own field `tools`, where it has one.
        convert_from_value_format: read ShareGPT's turns, ``{"from", "value"}``, too.
        drop_messages: leave the conversation (and the row's tools) out of the new row.
        role_mapping: names of roles to rename, beside the usual ones.
        template: instead of the tokenizer's: Jinja text, the path of a file, or a name of one of the tokenizer's.
        template_kwargs: further variables of the template.
        add_generation_prompt: end with what begins the assistant's next turn.
        special_tokens_in_text: ``fail``: a row whose own text spells out a special token is an error; ``encode``: it
            stays, and becomes one when the text is tokenized.
        drop_nulls: take nulls inside objects for missing fields, as rows of Parquet and Arrow have them.

    Raises:
        ConfigError: there is no template, or it cannot be used.
    """

    def __init__(
        self,
        tokenizer: Any,
        messages_field: str = "messages",
        output_field: str = "text",
        tools: Sequence[Mapping[str, Any]] | None = None,
        convert_from_value_format: bool = True,
        drop_messages: bool = True,
        *,
        role_mapping: Mapping[str, str] | None = None,
        template: str | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = False,
        special_tokens_in_text: Literal["fail", "encode"] = "fail",
        drop_nulls: bool = True,
    ) -> None:
        check_mode(special_tokens_in_text)
        files, own = files_of(tokenizer), getattr(tokenizer, "chat_template", None)
        if isinstance(own, dict):  # an object of transformers with several templates
            template = template or cast("dict[str, str]", own).get(DEFAULT)
        variables = {**named_tokens(files), **(template_kwargs or {})}
        self._template = ChatTemplate(chosen_template(template, files), variables=variables)
        self._guard = SpecialTokenGuard.of(files, special_tokens_in_text)
        self._reader = ConversationReader(role_mapping, value_format=convert_from_value_format)
        self._fields = tuple(dict.fromkeys((messages_field, *MESSAGES_FIELDS)))
        self._output, self._drop = output_field, drop_messages
        self._tools, self._prompt, self._lean = tools, add_generation_prompt, drop_nulls

    def has_conversation(self, example: Row) -> bool:
        """Return whether the row has something to render."""
        return self._field(example) is not None

    def __call__(self, example: Row) -> Row:
        """Return the row with its text.

        Raises:
            BadRecordError: it has no conversation, or none that can be rendered; `details` hold the reason.
        """
        field = self._field(example)
        if field is None:
            raise BadRecordError(
                f"the row has no conversation: none of {', '.join(self._fields)}; its fields are {', '.join(example)}",
                reason="no_messages",
            )
        own = (field, TOOLS_FIELD) if self._tools is None else (field,)
        rest = {name: value for name, value in example.items() if not self._drop or name not in own}
        if self._output in rest:
            raise BadRecordError(
                f"the row has a field {self._output!r} already; give another output_field, or drop it before",
                reason="field_exists",
            )
        messages = example[field]
        tools = example.get(TOOLS_FIELD) if self._tools is None else [*self._tools]
        if self._lean:
            messages, tools = without_nulls(messages), without_nulls(tools)
        with in_field(field):
            turns, schemas = self._reader.read(messages), tools_of(tools)
        for fault in self._guard.faults([(turns, schemas)]).values():
            raise BadRecordError(fault.detail, reason=fault.reason)
        made = self._template.render(turns, schemas, add_generation_prompt=self._prompt)
        return {**rest, self._output: made.text}

    def _field(self, row: Row) -> str | None:
        return next((name for name in self._fields if row.get(name) is not None), None)


@final
class MaybeApplyChatTemplate(Transform):
    """Puts rows that have a conversation through the chat template, and leaves the others as they are.

    It takes the arguments of :class:`ChatTemplateTransform`.
    """

    def __init__(self, tokenizer: Any, *args: Any, **options: Any) -> None:
        self._transform = ChatTemplateTransform(tokenizer, *args, **options)

    def __call__(self, example: Row) -> Row:
        """Return the row, with its text where it has a conversation."""
        return self._transform(example) if self._transform.has_conversation(example) else example
