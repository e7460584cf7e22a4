"""Where a chat template comes from: the configuration, or the tokenizer's files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, cast

from tokenlake.errors import ConfigError
from tokenlake.templates.rendered import MAX_TEMPLATE
from tokenlake.tokenizers import TokenizerFiles

JINJA_FILE: Final = "chat_template.jinja"
DEFAULT: Final = "default"
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
