"""Find the files of a tokenizer on disk or on the Hugging Face Hub, and read them.

The tokenizer is not run.
Only the bytes of the files are kept (:class:`TokenizerFiles`). A dataset version stores
them beside its data, and its fingerprint is computed from them. `transformers` is
imported only if there is no tokenizer.json, and `huggingface_hub` only if the local
cache of the Hub does not hold the repository: they take 0.2 and 0.5 s in every process.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, Final, cast, final

from tokenlake.base.checks import did_you_mean
from tokenlake.errors import (
    ConfigError,
    MissingExtraError,
    SourceNotFoundError,
    TokenizerError,
)
from tokenlake.runtime.tokenizer_guard.generation import (
    OLDER,
    exports_parts,
    tokenizers_version,
)
from tokenlake.runtime.tokenizer_guard.shape import (
    TOKENIZER_JSON,
    parse_json_object,
    require_config_shape,
    require_size,
    require_tokenizer_shape,
)
from tokenlake.runtime.tokenizer_guard.vocabulary import ids_by_token

SLOW_FILES: Final = (
    *(
        "tokenizer.model",
        "spiece.model",
        "sentencepiece.bpe.model",
        "tiktoken.model",
        "tekken.json",
    ),
    *("vocab.json", "merges.txt", "vocab.txt", "added_tokens.json"),
)
"""Files that hold a vocabulary. They are converted if there is no tokenizer.json."""

# Keys that transformers writes about the call that loaded a tokenizer.
_CALL_KEYS: Final = ("is_local", "local_files_only")


def converted(folder: Path, name: str) -> dict[str, bytes]:
    """Convert the tokenizer in a folder with transformers.

    No code of the folder is run.

    Args:
        folder: Folder with files of a tokenizer.
        name: Name that the user gave, for messages.

    Returns:
        File name -> content, as transformers saves a fast tokenizer.

    Raises:
        MissingExtraError: transformers is not installed.
        TokenizerError: transformers cannot load the folder, or has no fast tokenizer
            for it.
    """
    # 1. Load it as a fast tokenizer.
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        if find_spec("transformers") is not None and not exports_parts():
            raise MissingExtraError(
                f"tokenizer {name!r} has no tokenizer.json, and transformers, which converts its files, does not "
                f"work with tokenizers {tokenizers_version()}: {OLDER}. A converted folder no longer needs it: save "
                "it with save_pretrained"
            ) from error
        raise MissingExtraError(
            f"tokenizer {name!r} has no tokenizer.json, and to convert its files needs transformers: "
            "pip install 'tokenlake[transformers]'"
        ) from error
    loader: Any = AutoTokenizer
    try:
        tokenizer = loader.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:
        # The class of a tokenizer and its files may raise any exception.
        message = str(error).strip() or "no reason"
        reason = f"{type(error).__name__}: {message.splitlines()[0]}"
        raise TokenizerError(
            f"tokenizer {name!r}: no tokenizer.json, and transformers cannot load its files ({reason}); expected a "
            "fast tokenizer, or files that transformers converts (a tokenizer.model needs: pip install sentencepiece)",
            tokenizer=name,
        ) from error
    if not hasattr(tokenizer, "backend_tokenizer"):
        raise TokenizerError(
            f"tokenizer {name!r}: {type(tokenizer).__name__} has no fast form, which the library needs; "
            "expected one that transformers loads as a fast tokenizer",
            tokenizer=name,
        )

    # 2. Save it to a temporary folder, and read the files.
    files: dict[str, bytes] = {}
    with TemporaryDirectory() as target:
        tokenizer.save_pretrained(target)
        for path in Path(target).iterdir():
            if path.is_file():
                files[path.name] = path.read_bytes()

    # 3. The result must not depend on how transformers was called.
    saved_config = files.get("tokenizer_config.json")
    if saved_config:
        config: dict[str, Any] = json.loads(saved_config)
        for key in _CALL_KEYS:
            config.pop(key, None)
        files["tokenizer_config.json"] = json.dumps(
            config, indent=2, ensure_ascii=False
        ).encode()
    return files


# Files of a tokenizer that a version stores.
KEPT_FILES: Final = (
    TOKENIZER_JSON,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


@final
@dataclass(frozen=True, kw_only=True)
class TokenizerFiles:
    """The files of a tokenizer.

    Attributes:
        name: Name that the user gave, for messages. It is never part of an identity.
        files: File name -> content: `tokenizer.json`, and those of :data:`KEPT_FILES`
            that exist.
        revision: Commit of the Hub; None for a tokenizer that is not from the Hub.

    Raises:
        TokenizerError: `tokenizer.json` is missing, or a JSON file is not a JSON
            object.
    """

    name: str
    files: Mapping[str, bytes]
    revision: str | None = None

    def __post_init__(self) -> None:
        # Sorted, because the order of the files must not depend on the folder.
        sorted_files = dict(sorted(self.files.items()))
        object.__setattr__(self, "files", MappingProxyType(sorted_files))
        if TOKENIZER_JSON not in self.files:
            raise TokenizerError(
                f"tokenizer {self.name!r}: no {TOKENIZER_JSON} among {sorted(self.files) or 'no files'}, and no file "
                f"that could be converted; expected {TOKENIZER_JSON}, or one of {', '.join(SLOW_FILES)}",
                tokenizer=self.name,
            )

    def __reduce__(self) -> tuple[Any, ...]:
        # A mapping proxy cannot be pickled.
        return _rebuild, (self.name, dict(self.files), self.revision)

    @classmethod
    def read(
        cls,
        directory: Path | str,
        *,
        name: str | None = None,
        revision: str | None = None,
    ) -> TokenizerFiles:
        """Read the files of :data:`KEPT_FILES` that a directory holds.

        Without a tokenizer.json, files that hold a vocabulary are converted.

        Args:
            directory: Directory.
            name: Name for messages. Default: path of the directory.
            revision: Commit of the Hub, if the directory is from the Hub.

        Raises:
            TokenizerError: A file is too large, or there is no tokenizer.json and no
                file that can be converted.
            MissingExtraError: A conversion needs transformers, which is not installed.
        """
        folder = Path(directory)
        if name is None:
            name = str(folder)
        file_names = {path.name for path in folder.iterdir() if path.is_file()}
        has_slow_file = not file_names.isdisjoint(SLOW_FILES)
        needs_conversion = TOKENIZER_JSON not in file_names and has_slow_file

        files: dict[str, bytes] = {}
        if needs_conversion:
            saved_files = converted(folder, name)
            for file_name in KEPT_FILES:
                if file_name in saved_files:
                    files[file_name] = saved_files[file_name]
        else:
            for file_name in KEPT_FILES:
                if file_name in file_names:
                    files[file_name] = read_bounded(folder / file_name, name)
        return cls(name=name, files=files, revision=revision)

    @property
    def json_bytes(self) -> bytes:
        """The bytes of tokenizer.json."""
        return self.files[TOKENIZER_JSON]

    @cached_property
    def spec(self) -> dict[str, Any]:
        """The parsed tokenizer.json (do not modify).

        Raises:
            TokenizerError: The file does not have the shape of a tokenizer's file.
        """
        spec = self._parse(TOKENIZER_JSON)
        require_tokenizer_shape(self.name, spec)
        return spec

    @cached_property
    def config(self) -> dict[str, Any]:
        """Parsed tokenizer_config.json over special_tokens_map.json.

        It is empty without them.

        Raises:
            TokenizerError: A file is not a JSON object, or a named token in it is not a
                text.
        """
        merged: dict[str, Any] = {}
        for file_name in ("special_tokens_map.json", "tokenizer_config.json"):
            entries = self._parse(file_name)
            require_config_shape(self.name, file_name, entries)
            # A null says nothing, and does not replace the entry of the other file.
            merged |= {
                key: entry for key, entry in entries.items() if entry is not None
            }
        return merged

    @property
    def added_tokens(self) -> list[dict[str, Any]]:
        """The entries of `added_tokens` in tokenizer.json (do not modify)."""
        added: list[dict[str, Any]] | None = self.spec.get("added_tokens")
        return added or []

    @cached_property
    def _ids(self) -> dict[str, int]:
        """Ids by token, of the vocabulary and of the added tokens."""
        return ids_by_token(self.spec)

    @property
    def tokens(self) -> Iterable[str]:
        """All tokens, of the vocabulary and added ones, as tokenizer.json has them."""
        return self._ids.keys()

    @property
    def vocab_size(self) -> int:
        """One more than the largest id, added tokens included."""
        return max(self._ids.values(), default=-1) + 1

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """The contents of the added tokens marked special, by id."""
        added = sorted(self.added_tokens, key=lambda token: token["id"])
        return tuple(token["content"] for token in added if token.get("special"))

    @property
    def bos_token(self) -> str | None:
        """The beginning-of-sequence token."""
        return self._named("bos_token")

    @property
    def eos_token(self) -> str | None:
        """The end-of-sequence token."""
        return self._named("eos_token")

    @property
    def pad_token(self) -> str | None:
        """The padding token."""
        return self._named("pad_token")

    @property
    def bos_id(self) -> int | None:
        """The id of :attr:`bos_token`."""
        return self._id(self.bos_token)

    @property
    def eos_id(self) -> int | None:
        """The id of :attr:`eos_token`."""
        return self._id(self.eos_token)

    @property
    def pad_id(self) -> int | None:
        """The id of :attr:`pad_token`."""
        return self._id(self.pad_token)

    @property
    def fill_id(self) -> int | None:
        """Id that fills rows by default: that of padding, otherwise that of EOS."""
        if self.pad_id is None:
            return self.eos_id
        return self.pad_id

    def matched_tokens(self, *, literal: bool) -> list[str]:
        """Return the contents of the added tokens that a text is searched for.

        Args:
            literal: Whether special tokens are plain text, so that they are left out.
        """
        tokens = self.added_tokens
        if literal:
            tokens = [token for token in tokens if not token.get("special")]
        return [token["content"] for token in tokens]

    def token_id(self, token: str) -> int | None:
        """Return the id of a token of the vocabulary or of the added tokens."""
        return self._ids.get(token)

    def with_special_tokens(self, tokens: Mapping[str, str]) -> TokenizerFiles:
        """Return a copy with other named tokens.

        The ids around a text do not change: the post-processor of the tokenizer decides
        them.

        Args:
            tokens: Name -> token, for example ``{"pad_token": "<unk>"}``.

        Raises:
            TokenizerError: A token is not in the vocabulary. No model has learned the
                id of a new token.
        """
        for key, token in tokens.items():
            if self.token_id(token) is None:
                near = did_you_mean(token, self.special_tokens)
                raise TokenizerError(
                    f"tokenizer {self.name!r}: special_tokens.{key} is {token!r}, expected a token of its vocabulary"
                    f"{near}; add it to the tokenizer (and to the model) first",
                    tokenizer=self.name,
                )
        if not tokens:
            return self
        config = json.dumps({**self.config, **tokens}, ensure_ascii=False).encode()
        files = {**self.files, "tokenizer_config.json": config}
        return TokenizerFiles(name=self.name, files=files, revision=self.revision)

    def _named(self, key: str) -> str | None:
        """Return a named token, which is a text or an object with its content."""
        entry: Any = self.config.get(key)
        if isinstance(entry, dict):
            return cast("dict[str, str]", entry).get("content")
        return entry

    def _id(self, token: str | None) -> int | None:
        """Return the id of a named token, None for no token or no id."""
        if token is None:
            return None
        return self._ids.get(token)

    def _parse(self, file_name: str) -> dict[str, Any]:
        """Return a JSON file as a dict, empty if the tokenizer has no such file."""
        return parse_json_object(self.name, file_name, self.files.get(file_name, b"{}"))


NO_TOKENIZER: Final = TokenizerFiles(name="none", files={"tokenizer.json": b"{}"})
"""Tokenizer of recipes whose texts are fields, which need none."""


def read_bounded(path: Path, name: str) -> bytes:
    """Return the content of a file of a tokenizer.

    Raises:
        TokenizerError: The file is larger than that of any tokenizer.
    """
    require_size(name, path.name, path.stat().st_size)
    return path.read_bytes()


def _rebuild(
    name: str, files: dict[str, bytes], revision: str | None
) -> TokenizerFiles:
    """Return the files of a tokenizer that was pickled."""
    return TokenizerFiles(name=name, files=files, revision=revision)


# "name" or "organization/name". A name that ends like a file is a missing file.
_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_FILE_SUFFIXES: Final = (".json", ".model", ".txt", ".tiktoken")


def has_form_of_hub_id(name: str) -> bool:
    """Return whether a name may be the Hub id of a tokenizer, as opposed to a path.

    Neither the disk nor the Hub is asked.
    """
    repo, _, _ = name.partition("@")
    return _HUB_ID.fullmatch(repo) is not None and not repo.endswith(_FILE_SUFFIXES)


def load_tokenizer(name_or_path: str | os.PathLike[str]) -> TokenizerFiles:
    """Return the files of a tokenizer.

    Args:
        name_or_path: Path of a `tokenizer.json` file or of a directory that holds one,
            or Hub id such as ``meta-llama/Llama-2-7b-hf``, optionally with
            ``@revision``. A path that exists comes before the Hub. A repository in the
            local cache of the Hub is read without the network.

    Raises:
        SourceNotFoundError: The path or repository does not exist; the message names
            similar local paths.
        TokenizerError: There is neither a usable tokenizer.json nor a file that
            transformers converts.
        MissingExtraError: A download needs huggingface_hub or a conversion needs
            transformers, which is not installed.
    """
    # 1. A path that exists. A file stands for its folder, unless it has a name of its
    #    own.
    name = os.fspath(name_or_path)
    path = Path(name).expanduser()
    if path.is_dir():
        return TokenizerFiles.read(path, name=name)
    if path.is_file():
        if path.name == TOKENIZER_JSON or path.name in SLOW_FILES:
            return TokenizerFiles.read(path.parent, name=name)
        if path.suffix != ".json":
            raise TokenizerError(
                f"tokenizer {name!r}: cannot read a {path.suffix or 'suffix-less'} file; expected {TOKENIZER_JSON}, "
                f"another .json file of this form, or one of {', '.join(SLOW_FILES)}",
                tokenizer=name,
            )
        return TokenizerFiles(
            name=name, files={TOKENIZER_JSON: read_bounded(path, name)}
        )

    # 2. Nothing on disk has this name, so it must be a Hub id.
    repo, _, revision = name.partition("@")
    if not has_form_of_hub_id(name):
        raise SourceNotFoundError(
            f"tokenizer {name!r}: no such file or directory{_near(path)}; "
            "expected a tokenizer.json, a directory holding one, or a Hub id like 'org/name'",
            tokenizer=name,
        )
    snapshot = _cached_snapshot(repo, revision or "main")
    if snapshot is None:
        return _download(name, repo, revision or "main")
    return TokenizerFiles.read(snapshot, name=name, revision=snapshot.name)


def _near(path: Path) -> str:
    """Return a clause with names that are similar to a missing path, "" for none."""
    # The deepest folder of the path that exists, and the part of the path that it
    # lacks.
    parent = path.parent
    while not parent.is_dir() and parent != parent.parent:
        parent = parent.parent
    child = path.name
    if len(path.parts) > len(parent.parts):
        child = path.parts[len(parent.parts)]

    try:
        entries = sorted(entry.name for entry in parent.iterdir())
    except OSError:
        return ""
    matches = difflib.get_close_matches(child, entries, n=3, cutoff=0.6)
    if not matches:
        return ""
    return f"; {str(parent)!r} has {', '.join(map(repr, matches))}"


def _hub_cache() -> Path:
    """Return the cache folder of the Hub, by the rules of huggingface_hub."""
    variables = os.environ
    for key in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if variables.get(key):
            return Path(variables[key]).expanduser()
    if variables.get("HF_HOME"):
        return Path(variables["HF_HOME"]).expanduser() / "hub"
    cache_home = variables.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache_home).expanduser() / "huggingface" / "hub"


def _cached_snapshot(repo: str, revision: str) -> Path | None:
    """Return the cached snapshot of a branch, tag or commit.

    None if the cache has none with a tokenizer.json.
    """
    # A revision becomes part of a path, which must stay in the cache.
    if "/" in revision or revision in ("", ".", ".."):
        return None
    folder = _hub_cache() / f"models--{repo.replace('/', '--')}"
    reference = folder / "refs" / revision
    commit = revision
    if reference.is_file():
        commit = reference.read_text().strip()
    snapshot = folder / "snapshots" / commit
    if (snapshot / TOKENIZER_JSON).is_file():
        return snapshot
    return None


def _download(name: str, repo: str, revision: str) -> TokenizerFiles:
    """Download the files of a tokenizer from the Hub.

    Args:
        name: Name that the user gave, for messages.
        repo: Id of the repository.
        revision: Branch, tag or commit.

    Raises:
        MissingExtraError: huggingface_hub is not installed.
        SourceNotFoundError: The Hub does not give the files.
    """
    try:
        from huggingface_hub import hf_hub_download, list_repo_files  # pyright: ignore[reportUnknownVariableType]
    except ImportError as error:
        raise MissingExtraError(
            f"tokenizer {name!r} is not in the local Hub cache and downloading it needs huggingface_hub: "
            "pip install 'tokenlake[etl]'"
        ) from error
    try:
        repository_files = list_repo_files(repo, revision=revision)
        requested_names: set[str] = set(KEPT_FILES)
        if TOKENIZER_JSON not in repository_files:
            # Files for a conversion.
            requested_names.update(SLOW_FILES, ["config.json"])
        paths: list[Path] = []
        for file_name in repository_files:
            if file_name in requested_names:
                paths.append(Path(hf_hub_download(repo, file_name, revision=revision)))
    except Exception as error:
        # The client of the Hub passes on the exceptions of its HTTP library, which
        # changes with releases.
        raise SourceNotFoundError(
            f"tokenizer {name!r}: no such local path{_near(Path(name))}, not in the Hub's cache "
            f"{str(_hub_cache())!r}, and the Hub gave {type(error).__name__}: {error}. "
            "Check the spelling, log in for gated repositories, or pass a directory with a tokenizer.json",
            tokenizer=name,
        ) from error
    if not paths:
        return TokenizerFiles(name=name, files={})
    return TokenizerFiles.read(
        paths[0].parent, name=name, revision=paths[0].parent.name
    )


# Named tokens that an object of transformers has as attributes.
_NAMED: Final = (
    "bos_token",
    "eos_token",
    "unk_token",
    "pad_token",
    "cls_token",
    "sep_token",
    "mask_token",
)


def files_of(tokenizer: Any) -> TokenizerFiles:
    """Return the files of a tokenizer: from its name, its files or an object.

    Args:
        tokenizer: :class:`TokenizerFiles`, object that was loaded from them, Hub id,
            path, :class:`tokenlake.config.stages.TokenizerConfig`, or fast tokenizer of
            transformers or tokenizers.

    Raises:
        ConfigError: The argument is none of these.
        SourceNotFoundError: The path or repository does not exist.
        TokenizerError: The files are not those of a tokenizer.
    """
    for candidate in (tokenizer, getattr(tokenizer, "files", None)):
        if isinstance(candidate, TokenizerFiles):
            return candidate

    # An object of transformers or tokenizers.
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    package = type(backend).__module__.partition(".")[0]
    if package == "tokenizers" and not hasattr(backend, "to_str"):
        raise ConfigError(
            "tokenizer: got a tokenizers.Tokenizer of tokenizers 1.0, which does not export its tokenizer.json; "
            "pass the path of the tokenizer.json that it was loaded from, its folder or its Hub id"
        )
    if hasattr(backend, "to_str"):
        return _files_of_object(tokenizer, backend)

    # A configuration or a path. Workers need not import the class of a configuration.
    name_or_path = getattr(tokenizer, "name_or_path", tokenizer)
    if isinstance(name_or_path, str | os.PathLike):
        files = load_tokenizer(cast("str | os.PathLike[str]", name_or_path))
        return files.with_special_tokens(
            getattr(tokenizer, "special_tokens", None) or {}
        )
    raise ConfigError(
        f"tokenizer: got a {type(tokenizer).__name__}, must be a Hub id, a path, a TokenizerConfig, or a fast "
        "tokenizer of transformers or tokenizers"
    )


def _files_of_object(tokenizer: Any, backend: Any) -> TokenizerFiles:
    """Return the files of a tokenizer of transformers or tokenizers.

    Args:
        tokenizer: Object, whose attributes are the settings.
        backend: Its object of `tokenizers`, which exports tokenizer.json.
    """
    settings: dict[str, str] = {}
    for attribute in (*_NAMED, "padding_side", "chat_template"):
        setting = getattr(tokenizer, attribute, None)
        if isinstance(setting, str):
            settings[attribute] = setting
    name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
    files = {
        TOKENIZER_JSON: backend.to_str().encode(),
        "tokenizer_config.json": json.dumps(settings, ensure_ascii=False).encode(),
    }
    return TokenizerFiles(name=str(name), files=files)
