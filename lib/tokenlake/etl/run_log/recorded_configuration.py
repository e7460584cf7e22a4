"""Recorded configuration of a version, from which units are built again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

from tokenlake.config.texts import is_callable_name
from tokenlake.errors import ConfigError
from tokenlake.etl.run_log.asked_configuration import newest_asked
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.layout import Layout

_OPTIONS_WITH_FUNCTIONS: Final = ("transforms", "format_callback")
"""Options whose values may be names of functions."""

_REFERENCES: Final = (["env"], ["block"])
"""Keys of a mapping that refers to a secret."""

_HUB_TYPES: Final = ("hf", "huggingface")
"""Types of datasets whose `data_files` are paths in a repository of the Hub."""

_MOST_SHOWN: Final = 5
"""Number of options that a message names."""


def recorded(
    store: ReadStore, layout: Layout, fingerprint: str, remedy: str
) -> dict[str, Any]:
    """Return the configuration of the newest run of a version, with absolute paths.

    Args:
        store: Store of the version.
        layout: Layout of the version.
        fingerprint: Identity of the version.
        remedy: Advice to a user without it, for messages.

    Raises:
        ConfigError: No configuration was recorded, or it uses something that only the
            user may ask for.
    """
    version_name = f"{layout.dataset}@v{layout.version}"
    problem = f"{version_name}: its configuration is needed to build units again"
    record = newest_asked(store, layout, fingerprint)
    if record is None:
        raise ConfigError(f"{problem}, and no run of it recorded one; {remedy}")
    if record.config is None:
        reason = ""
        if record.left_out:
            reason = f" ({record.left_out})"
        raise ConfigError(f"{problem}, and its run did not record it{reason}; {remedy}")
    # Others may be able to write into the store, so its record is checked first.
    check_record(record.config, version_name, remedy)
    return rooted(record.config, record.directory)


def check_record(config: Mapping[str, Any], where: str, remedy: str) -> None:
    """Check that a recorded configuration uses nothing that only the user may ask for.

    Whoever can write into a store could otherwise have code run on the machine of a
    user who repairs it.

    Args:
        config: Configuration as JSON, as ``runs/`` has it.
        where: Name of the version, for the message.
        remedy: Advice to the user, for the message.

    Raises:
        ConfigError: It uses remote code, a function or a secret.
    """
    uses: dict[str, None] = {}
    for section, settings in config.items():
        # The recorded options of the store are not used, but those with which the user
        # opened it.
        if section != "save":
            uses.update(dict.fromkeys(_delicate_uses(settings, section, "")))
    if uses:
        shown = "; ".join(list(uses)[:_MOST_SHOWN])
        raise ConfigError(
            f"{where}: the configuration that the store records of its run is not used to build units again, because "
            f"it would use {shown}. Check it, and {remedy}"
        )


def _delicate_uses(
    value: Any, key: str, path: str, may_be_function: bool = False
) -> Iterator[str]:
    """Yield a phrase for each use of remote code, a function or a secret.

    Args:
        value: Value of an option.
        key: Its key.
        path: Dotted path of the option that holds it.
        may_be_function: Whether texts in the value may be names of functions.
    """
    # Below an option with functions, every text may name one.
    path = f"{path}.{key}".lstrip(".")
    may_be_function = may_be_function or key in _OPTIONS_WITH_FUNCTIONS
    if key == "trust_remote_code" and value:
        yield f"remote code ({path})"
    elif may_be_function and is_callable_name(value):
        yield f"the function {value} ({path})"
    elif isinstance(value, Mapping):
        fields = cast("Mapping[str, Any]", value)
        if list(fields) in _REFERENCES:
            reference_kind, secret_name = next(iter(fields.items()))
            yield f"the secret {{{reference_kind}: {secret_name}}} ({path})"
        for inner_key, inner_value in fields.items():
            yield from _delicate_uses(inner_value, inner_key, path, may_be_function)
    elif isinstance(value, list):
        for index, inner_value in enumerate(cast("list[Any]", value)):
            yield from _delicate_uses(inner_value, str(index), path, may_be_function)


def rooted(config: Mapping[str, Any], directory: str) -> dict[str, Any]:
    """Return a configuration whose relative paths are made absolute.

    Args:
        config: Configuration as JSON.
        directory: Folder that its relative paths refer to. In this folder the
            configuration stays as it is. A text that may be a path or an id of the Hub
            is a path where the path exists.
    """
    absolute_config = dict(config)
    if not directory or Path(directory) == Path.cwd():
        return absolute_config
    root = Path(directory)
    datasets = config.get("datasets") or ()
    absolute_config["datasets"] = [_rooted_dataset(entry, root) for entry in datasets]
    default_tokenizer = _rooted_tokenizer(config.get("default_tokenizer"), root)
    absolute_config["default_tokenizer"] = default_tokenizer
    # The tokenizer may also be named in the section `tokenize`.
    tokenize = config.get("tokenize")
    if tokenize:
        tokenizer = _rooted_tokenizer(tokenize.get("default_tokenizer"), root)
        absolute_config["tokenize"] = {**tokenize, "default_tokenizer": tokenizer}
    return absolute_config


def _rooted_dataset(entry: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """Return an entry of `datasets` with absolute paths."""
    dataset = {**entry, "tokenizer": _rooted_tokenizer(entry.get("tokenizer"), root)}
    # Names of splits in a Hub repository are no paths of this machine.
    files = entry.get("data_files")
    if files is not None and entry.get("type") not in _HUB_TYPES:
        dataset["data_files"] = _rooted_files(files, root)
    if entry.get("exclude"):
        dataset["exclude"] = _rooted_path(entry["exclude"], root)
    chat = entry.get("chat")
    # A template with braces is the template itself, not its name.
    if chat and chat.get("template") and "{" not in chat["template"]:
        template = _rooted_where_it_exists(chat["template"], root)
        dataset["chat"] = {**chat, "template": template}
    return dataset


def _rooted_files(files: Any, root: Path) -> Any:
    """Return absolute entries of `data_files`.

    They are a text, a list, or a mapping of split to these.
    """
    if isinstance(files, str):
        return _rooted_path(files, root)
    if isinstance(files, Mapping):
        return {split: _rooted_files(entries, root) for split, entries in files.items()}
    return [_rooted_path(entry, root) for entry in files]


def _rooted_tokenizer(choice: Any, root: Path) -> Any:
    """Return a choice of a tokenizer, a text or a section, with an absolute path."""
    if isinstance(choice, str):
        return _rooted_where_it_exists(choice, root)
    if isinstance(choice, Mapping):
        fields = cast("Mapping[str, Any]", choice)
        name_or_path = _rooted_where_it_exists(fields["name_or_path"], root)
        return {**fields, "name_or_path": name_or_path}
    return choice


def _rooted_path(path: str, root: Path) -> str:
    """Return a path below the root; URLs, absolute paths and those in ``~`` stay.

    The two are only joined: a glob is no path that could be normalized.
    """
    if "://" in path or path.startswith(("/", "~")):
        return path
    return f"{root}/{path}"


def _rooted_where_it_exists(path: str, root: Path) -> str:
    """Return a path below the root if it exists there, else the text as it is.

    The text may be the id of a tokenizer on the Hub.
    """
    absolute_path = _rooted_path(path, root)
    if absolute_path != path and Path(absolute_path).exists():
        return absolute_path
    return path
