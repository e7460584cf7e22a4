"""What a deployment's parameters may reach on the machine of its worker, and beyond.

Whoever may start a run on a Prefect server chooses paths on the worker's machine, and URLs that are read
with its credentials. Its owner bounds them with environment variables of the worker, lists of folders and URLs
separated like ``PATH``::

    TOKENLAKE_ALLOWED_INPUTS=/data/raw:s3://corpora/raw:https://data.example.org:8443/sets:hf://datasets/our-org
    TOKENLAKE_ALLOWED_OUTPUTS=/data/tokens:s3://lake/tokens:hf://datasets/our-org

Functions of a configuration run on the worker's machine. Their names must match one of the patterns, separated by
commas, of ``package.module:function``::

    TOKENLAKE_ALLOWED_CALLABLES=our_callbacks.text:*,our_callbacks.rows:clean

Tokenizers are files of the worker's machine or repositories of the Hub, and templates may be files. Where inputs are
bounded, such files must lie in folders that are allowed for inputs, or for tokenizers; repositories of the Hub are
bounded by patterns in the same list::

    TOKENLAKE_ALLOWED_TOKENIZERS=/data/tokenizers:openai-community/*:our-org/tokenizer

A variable that is not set allows every path, but no function: any module's could be called. Where inputs or outputs
are bounded, their `storage_options` must not lead elsewhere: an address in them must be allowed as well, and options
that are not known to be harmless are refused. Runs that a command starts are not bounded: their owner could read and
write these paths without us.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import unquote, urlsplit

from prefect import runtime

from tokenlake.config import PipelineConfig
from tokenlake.config.callables import callable_names
from tokenlake.config.resolve import resolve
from tokenlake.config.resolved import ResolvedSource
from tokenlake.config.steps import first_steps, foreseen, is_text_build
from tokenlake.config.stores import is_local
from tokenlake.errors import ConfigError
from tokenlake.sources.local.patterns import is_url
from tokenlake.storage.remote.allowed import INPUTS, entries_of, is_odd, lies_below
from tokenlake.storage.remote.urls import parse_url

OUTPUTS: Final = "TOKENLAKE_ALLOWED_OUTPUTS"
CALLABLES: Final = "TOKENLAKE_ALLOWED_CALLABLES"
TOKENIZERS: Final = "TOKENLAKE_ALLOWED_TOKENIZERS"

# Options that choose credentials or a pace, but no other place.
_HARMLESS: Final = frozenset(
    {"anon", "key", "secret", "token", "username", "password", "query", "headers"}
) | {
    *("requester_pays", "project", "region", "region_name", "use_ssl", "endpoint_url", "client_kwargs"),
    *("account_key", "sas_token", "client_id", "client_secret", "tenant_id", "verify"),
    *("aws_access_key_id", "aws_secret_access_key", "aws_session_token"),
}


def require_allowed(config: PipelineConfig) -> None:
    """Check the paths and functions of a deployment's run.

    Raises:
        ConfigError: one lies outside what the worker's environment allows.
    """
    if runtime.deployment.id is not None:
        check_paths(config, os.environ)


def require_allowed_store(store: str) -> None:
    """Check the store that a deployment's run looks at.

    Raises:
        ConfigError: it lies outside what the worker's environment allows.
    """
    if runtime.deployment.id is not None:
        _check_store(store, {}, entries_of(os.environ.get(OUTPUTS)))


def require_allowed_repository(repo: str) -> None:
    """Check the Hub's repository that a deployment's run publishes in.

    Raises:
        ConfigError: it lies outside what the worker's environment allows.
    """
    if runtime.deployment.id is not None:
        check_repository(repo, os.environ)


def check_repository(repo: str, environment: Mapping[str, str]) -> None:
    """Check a repository ``org/name`` against an environment; see :func:`require_allowed_repository`."""
    _check_url(f"hf://datasets/{repo}", entries_of(environment.get(OUTPUTS)), OUTPUTS, "the repository")


def check_paths(config: PipelineConfig, environment: Mapping[str, str]) -> None:
    """Check a configuration's inputs, store and functions against an environment; see :func:`require_allowed`."""
    first = first_steps(config)
    builds = [resolve(step) for step in ([config] if is_text_build(config) else first.values())]
    for source in (source for build in builds for source in build.sources):
        _check_source(source, environment.get(INPUTS))
        _check_tokenizer(source, environment)
        _check_templates(source, environment)
        _check_callables(source, environment.get(CALLABLES, ""))
    # What is mixed is read from the store that it is written to, whatever the steps before.
    last = builds[0] if is_text_build(config) else foreseen(config)
    _check_store(last.store, last.store_options, entries_of(environment.get(OUTPUTS)))


def _check_store(store: str, options: Mapping[str, Any], entries: list[str] | None) -> None:
    if is_local(store):
        # As the store itself reads its address: ~ and percent signs must not lead elsewhere.
        path = unquote(urlsplit(store).path) if "://" in store else store
        _check(path, entries, OUTPUTS, "the store")
    else:
        _check_url(store, entries, OUTPUTS, "the store")
        _check_options(options, entries, OUTPUTS, "the store")


def _check_source(source: ResolvedSource, allowed: str | None) -> None:
    entries, what = entries_of(allowed), f"data_files of {source.name!r}"
    remote = False
    for pattern in source.data_files:
        address = f"hf://datasets/{pattern}" if source.type == "hub" and not is_url(pattern) else pattern
        if is_url(address):
            remote = True
            _check_url(address, entries, INPUTS, what)
        else:
            _check(_static(pattern.removeprefix("file://")), entries, INPUTS, what)
    if source.exclude is not None:
        _check(source.exclude, entries, INPUTS, f"exclude of {source.name!r}")
    if remote:
        _check_options(source.storage_options, entries, INPUTS, repr(source.name))


def _check_tokenizer(source: ResolvedSource, environment: Mapping[str, str]) -> None:
    name, what = source.tokenizer.name_or_path, f"the tokenizer of {source.name!r}"
    if is_url(name):
        return  # no tokenizer is read from URLs
    if _is_file(name):
        _check(name, _folders(environment), f"{TOKENIZERS} or {INPUTS}", what)
    elif (allowed := environment.get(TOKENIZERS)) is not None:
        patterns = [entry for entry in allowed.split(":") if entry and not entry.startswith(("/", "."))]
        if not any(fnmatchcase(name.partition("@")[0], pattern) for pattern in patterns):
            raise ConfigError(
                f"{what}: {name!r} is not one that this worker allows; expected one of"
                f" {', '.join(patterns) or 'nothing on the Hub'} ({TOKENIZERS} in the worker's environment)"
            )


def _check_templates(source: ResolvedSource, environment: Mapping[str, str]) -> None:
    texts = source.texts
    found = [
        texts.chat and texts.chat.template,
        texts.prompt and texts.prompt.chat_template,
        texts.preference and texts.preference.chat_template,
    ]
    for template in filter(None, found):
        # Without a brace it is the name of one of the tokenizer's, or the path of a file.
        if "{" not in template and _is_file(template):
            _check(
                template,
                _folders(environment),
                f"{TOKENIZERS} or {INPUTS}",
                f"the template of {source.name!r}",
            )


def _is_file(name: str) -> bool:
    """Whether a name is taken as that of a file of this machine, and not of something on the Hub."""
    return name.startswith(("/", ".", "~")) or ".." in name.split("/") or Path(name).expanduser().exists()


def _folders(environment: Mapping[str, str]) -> list[str] | None:
    """The folders of inputs and of tokenizers; None where neither are bounded."""
    lists = [environment[name] for name in (INPUTS, TOKENIZERS) if name in environment]
    entries = [entry for allowed in lists for entry in entries_of(allowed) or ()]
    return [entry for entry in entries if entry.startswith(("/", ".", "~"))] if lists else None


def _check_callables(source: ResolvedSource, allowed: str) -> None:
    patterns = [pattern.strip() for pattern in allowed.split(",") if pattern.strip()]
    for name in callable_names(source.texts):
        if not any(fnmatchcase(name, pattern) for pattern in patterns):
            raise ConfigError(
                f"the function {name!r} of {source.name!r} is not one that this worker allows; expected one of"
                f" {', '.join(patterns) or 'nothing at all'} ({CALLABLES} in the worker's environment)"
            )


def _check(path: str, entries: list[str] | None, variable: str, what: str) -> None:
    if entries is None:
        return
    # Links are followed: what counts is where bytes are.
    real = Path(path).expanduser().resolve()
    folders = [Path(folder).expanduser().resolve() for folder in entries if not is_url(folder)]
    if not any(real.is_relative_to(folder) for folder in folders):
        raise _refused(what, path, str(real), list(map(str, folders)), variable)


def _check_url(address: str, entries: list[str] | None, variable: str, what: str) -> None:
    if entries is None:
        return
    url = parse_url(address)  # refuses URLs with credentials, so that the message shows none
    allowed = [parse_url(entry) for entry in entries if is_url(entry)]
    if is_odd(url.path) or not any(lies_below(url, above) for above in allowed):
        raise _refused(what, str(url), str(url), list(map(str, allowed)), variable)


def _check_options(options: Mapping[str, Any], entries: list[str] | None, variable: str, whose: str) -> None:
    if entries is None:
        return
    for key, value in _leaves(options):
        what = f"storage_options of {whose}: {key}"
        if key not in _HARMLESS and "headers" not in key:
            raise ConfigError(f"{what} is refused here, because {variable} bounds what this worker reaches")
        if isinstance(value, str) and is_url(value):
            _check_url(value, entries, variable, what)


def _leaves(options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield every key with its value; those of mappings in `client_kwargs` too, but not those of references."""
    for key, value in options.items():
        yield key, value
        if key == "client_kwargs" and isinstance(value, Mapping):
            yield from _leaves(cast("Mapping[str, Any]", value))


def _refused(what: str, path: str, real: str, allowed: list[str], variable: str) -> ConfigError:
    return ConfigError(
        f"{what}: {path!r} is outside what this worker allows; got {real!r}, expected a path in"
        f" {', '.join(allowed) or 'nothing at all'} ({variable} in the worker's environment)"
    )


def _static(pattern: str) -> str:
    """The folder below which a glob matches; a path without wildcards as it is."""
    fixed = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
    return fixed if fixed == pattern else fixed.rpartition("/")[0] or ("/" if fixed[:1] == "/" else ".")
