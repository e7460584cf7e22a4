"""The chat template of a configuration.

It is the tokenizer's own, one of several, a file, or a text.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from tokenlake.errors import ConfigError
from tokenlake.etl.text.chat_protocol import MAX_TEMPLATE

if TYPE_CHECKING:
    from tokenlake.etl.tokenizers.files import TokenizerFiles

JINJA_FILE: Final = "chat_template.jinja"
DEFAULT: Final = "default"
_NAMED_TOKENS: Final = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_MOST_FILE_BYTES: Final = 4 * MAX_TEMPLATE  # a character has at most 4 bytes


def templates_of(files: TokenizerFiles) -> dict[str, str]:
    """Return the chat templates of a tokenizer by name.

    Most tokenizers have one, named ``default``.

    A file of its own comes before the entry in tokenizer_config.json.
    """
    if JINJA_FILE in files.files:
        return {DEFAULT: files.files[JINJA_FILE].decode("utf-8", "strict")}
    entry: Any = files.config.get("chat_template")
    if isinstance(entry, str):
        return {DEFAULT: entry}
    # Tokenizers with several templates list them as {"name", "template"}.
    templates: dict[str, str] = {}
    if isinstance(entry, list):
        for item in cast("list[Any]", entry):
            if isinstance(item, dict):
                fields = cast("dict[str, Any]", item)
                templates[str(fields.get("name"))] = str(fields.get("template"))
    return templates


def chosen_template(setting: str | None, files: TokenizerFiles) -> str:
    """Return the text of the template that a configuration chooses.

    Args:
        setting: Jinja text, the name of one of the tokenizer's templates, or the path
            of a file; None for the tokenizer's own.
        files: Files of the tokenizer.

    Raises:
        ConfigError: The template does not exist or cannot be read.
    """
    templates = templates_of(files)
    if setting is None:
        if DEFAULT not in templates:
            raise ConfigError(no_template(files.name, list(templates)))
        return templates[DEFAULT]
    if setting in templates:
        return templates[setting]
    if "{" in setting:
        return setting
    # All else is the path of a file.
    expected = "expected a Jinja template (it has {{ or {%), the path of one, or a name of the tokenizer's templates"
    path = Path(setting).expanduser()
    # The size is read first: a device or a data file would fill the memory.
    try:
        file_size = path.stat().st_size
        if file_size > _MOST_FILE_BYTES:
            raise ConfigError(
                f"chat.template: {setting!r} has {file_size:,} bytes, {expected}"
            )
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        names = ""
        if templates:
            names = f": {', '.join(templates)}"
        raise ConfigError(
            f"chat.template: {setting!r} cannot be read ({error}); {expected}{names}"
        ) from error


def named_tokens(files: TokenizerFiles) -> dict[str, str]:
    """Return the tokens that a template knows by name.

    They are bos_token, eos_token, and others that the tokenizer names.
    """
    tokens: dict[str, str] = {}
    for token_role in _NAMED_TOKENS:
        variable = f"{token_role}_token"
        entry: Any = files.config.get(variable)
        # A token is a text, or an object that says how it is stripped.
        if isinstance(entry, dict):
            entry = cast("dict[str, Any]", entry).get("content")
        if isinstance(entry, str):
            tokens[variable] = entry
    extra_tokens: Any = files.config.get("extra_special_tokens")
    if isinstance(extra_tokens, dict):
        for name, token in cast("dict[Any, Any]", extra_tokens).items():
            if isinstance(token, str):
                tokens[str(name)] = token
    return tokens


def no_template(tokenizer: str, names: list[str]) -> str:
    """Return the message about a tokenizer without a default chat template.

    Args:
        tokenizer: Name of the tokenizer.
        names: Names of its other templates.
    """
    other_templates = ""
    if names:
        other_templates = f"; its templates are named {', '.join(names)}, of which chat.template can name one"
    return (
        f"tokenizer {tokenizer!r} has no chat template (chat_template in tokenizer_config.json, or {JINJA_FILE}), "
        "and conversations need one: set chat.template to a Jinja template or to the path of one, or use the "
        f"tokenizer of a chat model{other_templates}"
    )


def check_mode(special_tokens_in_text: str) -> None:
    """Require a treatment of special tokens in rows that conversations can have.

    Raises:
        ConfigError: The treatment is ``literal``.
    """
    if special_tokens_in_text == "literal":
        raise ConfigError(
            "special_tokens_in_text: 'literal' is not possible for conversations: their texts are encoded together "
            "with the control tokens of the chat template. Set it to 'fail' (a row that contains one is a bad "
            "record; the default here) or to 'encode' (it becomes a control token)"
        )
