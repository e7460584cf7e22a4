"""Bounds of a deployment's parameters: the places, functions and secrets of its runs.

Whoever may start a run on a Prefect server chooses paths on the worker's machine, and
URLs that are read with its credentials. Its owner bounds them with environment
variables of the worker, lists of folders and URLs separated like ``PATH``::

    TOKENLAKE_ALLOWED_INPUTS=/data/raw:s3://corpora/raw:https://data.example.org:8443/sets:hf://datasets/our-org
    TOKENLAKE_ALLOWED_OUTPUTS=/data/tokens:s3://lake/tokens:hf://datasets/our-org

Functions of a configuration run on the worker's machine. Their names must match one of
the patterns, separated by commas, of ``package.module:function``::

    TOKENLAKE_ALLOWED_CALLABLES=our_callbacks.text:*,our_callbacks.rows:clean

Tokenizers are files of the worker's machine or repositories of the Hub, and templates
may be files. Where inputs are bounded, such files must lie in folders that are allowed
for inputs, or for tokenizers; repositories of the Hub are bounded by patterns in the
same list::

    TOKENLAKE_ALLOWED_TOKENIZERS=/data/tokenizers:openai-community/*:our-org/tokenizer

Secrets are variables of the worker's environment and Secret blocks of the server. The
variables hold patterns of their names::

    TOKENLAKE_ALLOWED_VARIABLES=LAKE_*,HF_TOKEN
    TOKENLAKE_ALLOWED_BLOCKS=lake-*

Configurations that are files of the worker's machine must lie in ``deployments/``, or
in one of these folders::

    TOKENLAKE_ALLOWED_CONFIGS=/data/configurations

A variable that is not set allows every path of inputs and outputs, but no function, no
secret and no other folder of configurations. Of `storage_options` a few are known, and
all others refused: a reference stands only where a credential does, and an address must
be written out and be allowed for inputs, or for outputs. Runs that a command starts are
not bounded: their owner could read and write these paths without us.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, TypeVarTuple, cast, final
from urllib.parse import unquote, urlsplit

from tokenlake.base.section import BlockSecret, EnvSecret, plain_options, references
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.config.resolve import (
    first_steps,
    foreseen,
    resolve,
    resolve_source,
    store_of,
)
from tokenlake.config.resolved import ResolvedSource
from tokenlake.errors import ConfigError
from tokenlake.etl.clean.cleaning import output_of
from tokenlake.etl.export.plan import exports_of
from tokenlake.etl.job import BackendJob, Job, SignJob, UnitJob
from tokenlake.etl.sources.allowed import require_allowed_inputs
from tokenlake.runtime.store.allowed import (
    INPUTS,
    AllowedPlaces,
    bound_inputs_here,
    entries_of,
)
from tokenlake.runtime.store.schemes import is_local

_Ts = TypeVarTuple("_Ts")
OUTPUTS: Final = "TOKENLAKE_ALLOWED_OUTPUTS"
CALLABLES: Final = "TOKENLAKE_ALLOWED_CALLABLES"
TOKENIZERS: Final = "TOKENLAKE_ALLOWED_TOKENIZERS"

VARIABLES: Final = "TOKENLAKE_ALLOWED_VARIABLES"
BLOCKS: Final = "TOKENLAKE_ALLOWED_BLOCKS"
CONFIGS: Final = "TOKENLAKE_ALLOWED_CONFIGS"

# The storage options that are known, by the kind of their values. All others are
# refused.
_CREDENTIALS: Final = frozenset(
    {
        "key",
        "secret",
        "token",
        "username",
        "password",
        "query",
        "account_key",
        "sas_token",
        "client_secret",
    }
    | {"aws_access_key_id", "aws_secret_access_key", "aws_session_token"}
)
# Options whose value is a word that leads nowhere.
_WORDS: Final = frozenset(
    {
        "anon",
        "requester_pays",
        "project",
        "region",
        "region_name",
        "client_id",
        "tenant_id",
    }
)
# Addresses of a service: each is compared with the allowed places.
_ADDRESSES: Final = frozenset({"endpoint", "endpoint_url"})
# Headers of requests that are allowed.
_HEADERS: Final = frozenset(
    {"accept", "api-key", "authorization", "cookie", "private-token", "user-agent"}
    | {"x-api-key", "x-auth-token"}
)
_WORD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


@final
@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of a run.

    Attributes:
        environment: Variables of the worker's environment, which bound the run of a
            deployment. None: a run that a command started, which is not bounded.
    """

    environment: Mapping[str, str] | None = None

    @property
    def is_bounded(self) -> bool:
        """True for the run of a deployment."""
        return self.environment is not None

    def require(
        self, check: Callable[[*_Ts, Mapping[str, str]], None], *arguments: *_Ts
    ) -> None:
        """Check a path, address or secret of a run, unless the run is not bounded.

        Args:
            check: One of this module's functions.
            arguments: Arguments of `check` before the environment.

        Raises:
            ConfigError: It lies outside the bounds of the environment.
        """
        if self.environment is not None:
            # Files that links lead to are opened later, and checked then.
            bound_inputs_here()
            check(*arguments, self.environment)

    def require_secret(self, name: str, value: str) -> None:
        """Check the value of a block.

        Whoever may start a run of a deployment can write blocks, too.

        Raises:
            ConfigError: It is an address, or the path of a file of this machine.
        """
        if self.is_bounded and ("://" in value or os.path.isfile(value)):  # noqa: PTH113 - no OSError
            raise ConfigError(
                f"{{block: {name}}} contains an address or a path, expected a secret"
            )

    @contextmanager
    def contents_hidden(self, path: str) -> Generator[None]:
        """Report where a file is wrong, but not its content.

        Whoever starts a deployment's run reads the message.

        Problems of the overrides, which came with the run, are reported in full.

        Raises:
            ConfigError: In place of another one.
        """
        try:
            yield
        except ConfigError as error:
            if not self.is_bounded:
                raise
            # Three kinds of problems: an override that does not fit the file, other
            # overrides, and the content of the file, of which only line numbers are
            # shown.
            override = error.details.get("override")
            if override is not None:
                raise ConfigError(
                    f"{override}: it does not match the configuration {path}"
                ) from None
            problems: list[str] = error.details.get("problems", [])
            messages: list[str] = list(error.details.get("overridden", ()))
            if len(messages) < max(len(problems), 1):
                line_numbers = sorted(set(error.details.get("lines", ())))
                message = f"{path}: no valid configuration"
                if line_numbers:
                    places = [f"line {line_number}" for line_number in line_numbers]
                    message += ": " + ", ".join(places)
                messages.append(f"{message} (its content is not shown here)")
            raise ConfigError("\n  ".join(messages)) from None


UNBOUNDED: Final = Bounds()
"""The bounds of a run that a command started: none."""


def check_store(
    store: str, options: Mapping[str, Any], environment: Mapping[str, str]
) -> None:
    """Check the store that a run looks at, and the options that it opens it with."""
    for reference in _named_secrets(options):
        _check_reference(reference, environment)
    _check_store(store, options, AllowedPlaces.of(environment, OUTPUTS))


def check_repository(repo: str, environment: Mapping[str, str]) -> None:
    """Check the Hub's repository that a run publishes in."""
    AllowedPlaces.of(environment, OUTPUTS).require(
        f"hf://datasets/{repo}", "the repository"
    )


def check_reference(
    reference: Mapping[str, str], environment: Mapping[str, str]
) -> None:
    """Check the secret that a run names; empty: it names none."""
    for secret in _named_secrets({"token": reference}):
        _check_reference(secret, environment)


def check_config(path: Path, deployments: Path, environment: Mapping[str, str]) -> None:
    """Check that a configuration's file lies in an allowed folder, before it is read.

    `deployments` is always allowed.
    """
    entries = (str(deployments), *(entries_of(environment.get(CONFIGS)) or ()))
    AllowedPlaces(CONFIGS, entries).require(str(path), "config")


def check_job(job: Job, environment: Mapping[str, str]) -> None:
    """Check the inputs and functions of a job of a plan.

    Everyone who can write the store can write plans.

    Its store is checked separately.
    """
    if not isinstance(job, UnitJob | BackendJob | SignJob):
        return  # which reads its store and nothing else
    source = job.source
    inputs = AllowedPlaces.of(environment, INPUTS)
    for reference in _named_secrets(source.storage_options):
        _check_reference(reference, environment)
    for file_range in job.ranges:
        inputs.require(file_range.file.url, f"an input of {source.name!r}")
    _check_options(source.storage_options, inputs, repr(source.name))
    _check_templates(source, environment)
    _check_functions(source, environment)


def check_paths(config: PipelineConfig, environment: Mapping[str, str]) -> None:
    """Check a configuration's inputs, outputs, functions and references to secrets.

    Args:
        config: Configuration of the run.
        environment: Variables of the worker's environment.

    Raises:
        ConfigError: Any of them lies outside the bounds of the environment.
    """
    for reference in references(config):
        _check_reference(reference, environment)
    for dataset in config.datasets:
        if dataset.retokenize:
            raise ConfigError(
                f"datasets.{dataset.name}.retokenize: reads files that a configuration in the store names, which "
                "runs of a deployment do not; write data_files instead of dataset"
            )
    if config.is_text_build:
        last_build = resolve(config)
        text_builds = [last_build]
    else:
        last_build = foreseen(config)
        text_builds = [resolve(step) for step in first_steps(config).values()]
    for build in text_builds:
        for source in build.sources:
            _check_source(source, environment)
            _check_tokenizer(source, environment)
            _check_templates(source, environment)
    outputs = AllowedPlaces.of(environment, OUTPUTS)
    if config.observability.metrics_file is not None:
        outputs.require(str(config.observability.metrics_file), "metrics_file")
    # A mixture is read from the store that it is written to.
    _check_store(last_build.store, last_build.store_options, outputs)
    for export_plan in exports_of(config):
        outputs.require(export_plan.output_path, export_plan.key)
    if config.save.push_to_hub:
        outputs.require(f"hf://datasets/{config.save.hub_repo_id}", "save.hub_repo_id")


def check_cleaning(config: PipelineConfig, environment: Mapping[str, str]) -> None:
    """Check the inputs, outputs and functions of the flow `clean`."""
    for reference in references(config):
        _check_reference(reference, environment)
    clean_section = config.clean
    outputs = AllowedPlaces.of(environment, OUTPUTS)
    # Evaluation sets are read like sources.
    datasets = [*config.datasets]
    if clean_section.contamination:
        datasets += clean_section.contamination.sets
    for dataset in datasets:
        _check_source(resolve_source(config, dataset), environment)
    _check_store(
        store_of(config), plain_options(config.save.storage_options or {}), outputs
    )
    # Lists of earlier runs were outputs, too.
    for list_path in (output_of(config), *clean_section.against):
        outputs.require(list_path, "a list of documents to leave out")


def _check_store(
    store: str, options: Mapping[str, Any], outputs: AllowedPlaces
) -> None:
    """Check the place of a store, and its options."""
    store_place = store
    if is_local(store) and "://" in store:
        # As the store itself reads its address: ~ and percent signs must not lead
        # elsewhere.
        store_place = unquote(urlsplit(store).path)
    outputs.require(store_place, "the store")
    _check_options(options, outputs, "the store")


def _check_source(source: ResolvedSource, environment: Mapping[str, str]) -> None:
    """Check the inputs of a source, the options to open them, and its functions."""
    inputs = AllowedPlaces.of(environment, INPUTS)
    require_allowed_inputs(source, inputs)
    _check_options(source.storage_options, inputs, repr(source.name))
    _check_functions(source, environment)


def _check_tokenizer(source: ResolvedSource, environment: Mapping[str, str]) -> None:
    """Check the tokenizer of a source, which is a file or a repository.

    A file must lie in an allowed folder, a repository of the Hub match a pattern.
    """
    tokenizer_name = source.tokenizer.name_or_path
    subject = f"the tokenizer of {source.name!r}"
    if _is_file(tokenizer_name):
        _folders(environment).require(tokenizer_name, subject)
        return
    allowed_entries = environment.get(TOKENIZERS)
    if allowed_entries is None:
        return
    repository, _, revision = tokenizer_name.partition("@")
    patterns: list[str] = []
    for entry in allowed_entries.split(":"):
        if entry and not entry.startswith(("/", ".")):
            patterns.append(entry)
    is_listed = _matches_any(repository, patterns)
    if not is_listed or ".." in revision.split("/"):
        allowed_names = ", ".join(patterns) or "nothing on the Hub"
        raise ConfigError(
            f"{subject}: {tokenizer_name!r} is not allowed on this worker; expected one of {allowed_names} "
            f"({TOKENIZERS} in the worker's environment)"
        )


def _check_functions(source: ResolvedSource, environment: Mapping[str, str]) -> None:
    """Check that the functions of a source match one of the patterns."""
    for function_name in source.texts.functions:
        patterns = environment.get(CALLABLES, "")
        subject = f"the function {function_name!r} of {source.name!r}"
        _check_name(function_name, subject, patterns, CALLABLES)


def _check_templates(source: ResolvedSource, environment: Mapping[str, str]) -> None:
    """Check that the templates of a source that are files lie in an allowed folder."""
    texts = source.texts
    templates: list[str | None] = []
    if texts.chat:
        templates.append(texts.chat.template)
    if texts.prompt:
        templates.append(texts.prompt.chat_template)
    if texts.preference:
        templates.append(texts.preference.chat_template)
    for template in templates:
        # Without a brace it is the name of one of the tokenizer's, or the path of a
        # file.
        if template and "{" not in template and _is_file(template):
            _folders(environment).require(template, f"the template of {source.name!r}")


def _is_file(written_name: str) -> bool:
    """Say whether a name is taken as that of a file of this machine.

    Otherwise it names something on the Hub.
    """
    is_path = written_name.startswith(("/", ".", "~")) or ".." in written_name.split(
        "/"
    )
    # No tokenizer and no template is read from a URL; the text of one may still be a
    # path.
    return is_path or "://" in written_name or Path(written_name).expanduser().exists()


def _folders(environment: Mapping[str, str]) -> AllowedPlaces:
    """Return the folders of inputs and of tokenizers."""
    is_bounded = False
    folders: list[str] = []
    for variable in (TOKENIZERS, INPUTS):
        if variable not in environment:
            continue
        is_bounded = True
        # Other entries are URLs, and patterns of repositories.
        for entry in entries_of(environment[variable]) or ():
            if entry.startswith(("/", ".", "~")):
                folders.append(entry)
    allowed_folders = tuple(folders) if is_bounded else None
    return AllowedPlaces(f"{TOKENIZERS} or {INPUTS}", allowed_folders)


def _check_reference(
    reference: EnvSecret | BlockSecret, environment: Mapping[str, str]
) -> None:
    """Check that the name of a variable or block is allowed, and holds no address.

    A name is allowed if it matches one of the patterns.
    """
    if isinstance(reference, BlockSecret):
        secret_name = reference.block.removeprefix("secret/")
        patterns = environment.get(BLOCKS, "")
        _check_name(secret_name, f"{{block: {secret_name}}}", patterns, BLOCKS)
        return
    secret_name = reference.env
    patterns = environment.get(VARIABLES, "")
    _check_name(secret_name, f"{{env: {secret_name}}}", patterns, VARIABLES)
    # A variable with an address could lead the requests of a run there.
    if "://" in environment.get(secret_name, ""):
        raise ConfigError(
            f"{{env: {secret_name}}} contains an address, expected a secret"
        )


def _check_name(name: str, subject: str, allowed: str, variable: str) -> None:
    """Check that a name matches one of several patterns.

    Args:
        name: Name to check.
        subject: Beginning of the message.
        allowed: Patterns, separated by commas.
        variable: Variable that holds the patterns, for the message.

    Raises:
        ConfigError: No pattern matches.
    """
    patterns = [pattern.strip() for pattern in allowed.split(",") if pattern.strip()]
    if not _matches_any(name, patterns):
        allowed_names = ", ".join(patterns) or "nothing"
        raise ConfigError(
            f"{subject} is not allowed on this worker; expected one of {allowed_names} ({variable} in the worker's "
            "environment)"
        )


def _matches_any(name: str, patterns: Sequence[str]) -> bool:
    """Say whether a name matches one of several patterns, letter by letter."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _check_options(
    options: Mapping[str, Any], places: AllowedPlaces, owner: str
) -> None:
    """Check that storage options are known, and that addresses in them are allowed.

    Args:
        options: Options of a file system.
        places: Allowed places of its files.
        owner: Source or store that has the options, for the message.

    Raises:
        ConfigError: An option is not known, has another form, or leads to a place that
            is not allowed.
    """
    for option, option_value in options.items():
        subject = f"storage_options of {owner}: {option}"
        if option == "client_kwargs" and isinstance(option_value, Mapping):
            _check_options(cast("Mapping[str, Any]", option_value), places, owner)
        elif option in _ADDRESSES:
            if not isinstance(option_value, str):
                raise ConfigError(
                    f"{subject}: expected a URL in full, so that it can be compared with {places.variable}"
                )
            # Without a list, too: the credentials of the worker's machine would go
            # there.
            allowed_places = AllowedPlaces(places.variable, places.entries or ())
            allowed_places.require_url(option_value, subject)
        elif not _is_known(option, option_value):
            known_options = sorted(
                {*_CREDENTIALS, *_WORDS, *_ADDRESSES, "client_kwargs", "headers"}
            )
            raise ConfigError(
                f"{subject} is refused: a worker allows runs of a deployment only {', '.join(known_options)}, "
                f"and of headers {', '.join(sorted(_HEADERS))}; credentials as {{env: NAME}} or {{block: NAME}}, "
                "all others as a single plain word"
            )


def _is_known(option: str, option_value: object) -> bool:
    """Say whether an option leads to no other place, and its value has its form."""
    has_entries = option in ("headers", "query") and isinstance(option_value, Mapping)
    if has_entries and not _is_reference(option_value):
        entries = cast("Mapping[str, Any]", option_value)
        if option == "headers" and not {name.lower() for name in entries} <= _HEADERS:
            return False
        return all(_is_credential(entry) for entry in entries.values())
    if option in _CREDENTIALS:
        return _is_credential(option_value)
    return option in _WORDS and _is_word(option_value)


def _is_word(option_value: object) -> bool:
    """Say whether a value is null, a truth value, or one plain word.

    A word consists of letters, digits, ``_`` and ``-``.
    """
    if isinstance(option_value, str):
        return _WORD.fullmatch(option_value) is not None
    return option_value is None or isinstance(option_value, bool)


def _is_credential(option_value: object) -> bool:
    """Say whether a value can be a credential: a reference, or no address.

    Texts are accepted because literal secrets were refused when the configuration was
    read.
    """
    if isinstance(option_value, str):
        return "://" not in option_value
    return (
        option_value is None
        or isinstance(option_value, bool)
        or _is_reference(option_value)
    )


def _is_reference(option_value: object) -> bool:
    """Say whether a value is a reference to a secret.

    It is ``{env: NAME}`` or ``{block: NAME}``.
    """
    if not isinstance(option_value, Mapping):
        return False
    keys = set(cast("Mapping[str, Any]", option_value))
    return keys in ({"env"}, {"block"})


def _named_secrets(options: Mapping[str, Any]) -> Iterator[EnvSecret | BlockSecret]:
    """Yield the references in options that are written out."""
    for option_value in options.values():
        if _is_reference(option_value):
            (secret_kind, secret_name), *_ = option_value.items()
            if secret_kind == "env":
                yield EnvSecret(env=secret_name)
            else:
                yield BlockSecret(block=secret_name)
        elif isinstance(option_value, Mapping):
            yield from _named_secrets(cast("Mapping[str, Any]", option_value))
