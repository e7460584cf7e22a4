"""What conversations need of a tokenizer: its chat template, its named tokens, and a guard of its special tokens."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any, Final, Self, cast, final

import pyarrow as pa

from tokenlake.errors import ConfigError
from tokenlake.sources.rows import Fault
from tokenlake.text.chat.template import FORGED, MAX_TEMPLATE
from tokenlake.text.rendering import is_utf8
from tokenlake.tokenizers.encoder import SpecialScan
from tokenlake.tokenizers.files import TokenizerFiles, load_tokenizer
from tokenlake.tokenizers.reference import ReferenceEngine

JINJA_FILE: Final = "chat_template.jinja"
DEFAULT: Final = "default"
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


def template_of(files: TokenizerFiles) -> str | None:
    """Return a tokenizer's chat template, None where it has none that goes without a name."""
    return templates_of(files).get(DEFAULT)


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
    if "{" in asked:
        return asked
    return own[asked] if asked in own else _from_file(asked, list(own))


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


def _from_file(name: str, names: list[str]) -> str:
    path = Path(name).expanduser()
    expected = f"expected a Jinja template (it has {{{{ or {{%), the path of one{_or(names)}"
    try:
        if path.stat().st_size > 4 * MAX_TEMPLATE:
            raise ConfigError(f"chat.template: {name!r} has {path.stat().st_size:,} bytes, {expected}")
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"chat.template: {name!r} cannot be read ({error}); {expected}") from error


def _or(names: list[str]) -> str:
    return f", or a name of the tokenizer's: {', '.join(names)}" if names else ""


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

    @classmethod
    def of(cls, files: TokenizerFiles) -> Self:
        """Return the guard for a tokenizer's special tokens."""
        normalized = any(token.get("special") and token.get("normalized") for token in files.added_tokens)
        if not normalized or files.spec.get("normalizer") is None:
            return cls(files.special_tokens)
        normalizer: Any = ReferenceEngine(files).backend.normalizer
        return cls(files.special_tokens, normalizer.normalize_str)

    @property
    def normalizes(self) -> bool:
        """Whether texts must be looked at as the tokenizer normalizes them, too, so that `scan` alone is not enough."""
        return self._normalize is not None

    def faults(self, values: Sequence[Any]) -> dict[int, Fault]:
        """Return {index: why} of the values that cannot be used."""
        strings: list[str] = []
        owners: list[int] = []
        for index, value in enumerate(values):
            texts = _texts_in(value)
            texts += [self._normalize(text) for text in texts] if self._normalize else []
            strings += texts
            owners += [index] * len(texts)
        found: dict[int, Fault] = {}
        try:
            column = pa.array(strings, pa.large_string())
        except UnicodeEncodeError:
            broken = [not is_utf8(text) for text in strings]
            found = dict.fromkeys(compress(owners, broken), _BROKEN)
            column = pa.array(
                ["" if bad else text for text, bad in zip(strings, broken, strict=True)], pa.large_string()
            )
        for row in self.scan.count(column)[0].tolist():
            found.setdefault(owners[row], self._forged(strings[row]))
        return found

    def _forged(self, text: str) -> Fault:
        return Fault(
            FORGED,
            f"a text of the conversation spells out the special token {self.scan.first(text)!r}, which would become a "
            "control token; take it out, or set special_tokens_in_text: encode to allow it",
        )


def _texts_in(value: Any) -> list[str]:
    """Return every string inside plain data, keys of objects among them."""
    found: list[str] = []
    rest = [value]
    while rest:
        item = rest.pop()
        if isinstance(item, str):
            found.append(item)
        elif isinstance(item, dict):
            rest += cast("dict[Any, Any]", item)
            rest += cast("dict[Any, Any]", item).values()
        elif isinstance(item, list | tuple):
            rest += cast("list[Any]", item)
    return found


AnyTokenizer = str | os.PathLike[str] | TokenizerFiles | Any


@final
@dataclass(frozen=True, slots=True)
class ChatTokenizer:
    """A tokenizer's chat template, its named tokens, and a guard of its special tokens."""

    template: str
    tokens: Mapping[str, str]
    guard: SpecialTokenGuard

    @classmethod
    def of(cls, tokenizer: AnyTokenizer, template: str | None = None) -> Self:
        """Take them of a tokenizer; `template` instead of its own.

        Raises:
            ConfigError: it has no template, or is no tokenizer.
        """
        if isinstance(tokenizer, str | os.PathLike):
            tokenizer = load_tokenizer(cast("str | os.PathLike[str]", tokenizer))
        if isinstance(tokenizer, TokenizerFiles):
            text = chosen_template(template, tokenizer)
            return cls(text, named_tokens(tokenizer), SpecialTokenGuard.of(tokenizer))
        return cls._of_transformers(tokenizer, template)

    @classmethod
    def _of_transformers(cls, tokenizer: Any, template: str | None) -> Self:
        if not hasattr(tokenizer, "apply_chat_template"):
            raise ConfigError(
                f"tokenizer: got {type(tokenizer).__name__}, must be a Hub id, a path, or a tokenizer of transformers"
            )
        own: Any = tokenizer.chat_template
        text = template or (cast("dict[str, str]", own).get(DEFAULT) if isinstance(own, dict) else own)
        if not text:
            raise ConfigError(no_template(str(getattr(tokenizer, "name_or_path", "")), []))
        named = {str(name): str(token) for name, token in tokenizer.special_tokens_map.items()}
        added: Mapping[int, Any] = getattr(tokenizer, "added_tokens_decoder", {})
        special = {token.content for token in added.values() if token.special}
        return cls(text, named, SpecialTokenGuard(sorted({*special, *tokenizer.all_special_tokens})))
