"""The files of a tokenizer: found on disk or on the Hugging Face Hub, and read without running it.

Only the files' bytes are kept (:class:`TokenizerFiles`): they are what a dataset version stores beside its data and
what its fingerprint is taken of. Where there is a tokenizer.json, `transformers` is not imported, and where the Hub's
local cache holds the repository, `huggingface_hub` is not either (0.2 and 0.5 s in every process).
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
from tokenlake.errors import ConfigError, MissingExtraError, SourceNotFoundError, TokenizerError
from tokenlake.runtime.tokenizer_guard.generation import OLDER, exports_parts, tokenizers_version
from tokenlake.runtime.tokenizer_guard.shape import (
    TOKENIZER_JSON,
    parse_json_object,
    require_config_shape,
    require_size,
    require_tokenizer_shape,
)
from tokenlake.runtime.tokenizer_guard.vocabulary import ids_by_token

SLOW_FILES: Final = (
    *("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "tiktoken.model", "tekken.json"),
    *("vocab.json", "merges.txt", "vocab.txt", "added_tokens.json"),
)
"""What holds a vocabulary where there is no tokenizer.json."""

_OF_THE_CALL: Final = ("is_local", "local_files_only")  # what transformers notes of how it was called


def converted(folder: Path, name: str) -> dict[str, bytes]:
    """Return the files that transformers saves of the tokenizer in a folder; no code of the folder is run.

    Args:
        name: what the user called it.

    Raises:
        MissingExtraError: transformers is not installed.
        TokenizerError: it cannot load the folder, or makes no fast tokenizer of it.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        if find_spec("transformers") is not None and not exports_parts():
            raise MissingExtraError(
                f"tokenizer {name!r} has no tokenizer.json, and transformers, which converts its files, does not work "
                f"with tokenizers {tokenizers_version()}: {OLDER}. A folder that was converted once needs it no more: "
                "save it with save_pretrained"
            ) from error
        raise MissingExtraError(
            f"tokenizer {name!r} has no tokenizer.json, and to convert its files needs transformers: "
            "pip install 'tokenlake[transformers]'"
        ) from error
    loader: Any = AutoTokenizer
    try:
        tokenizer = loader.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:
        # Whatever a tokenizer's own class and its files may raise.
        why = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no reason'}"
        raise TokenizerError(
            f"tokenizer {name!r}: no tokenizer.json, and transformers cannot load its files ({why}); expected a fast "
            "tokenizer, or files that transformers converts (a tokenizer.model needs: pip install sentencepiece)",
            tokenizer=name,
        ) from error
    if not hasattr(tokenizer, "backend_tokenizer"):
        raise TokenizerError(
            f"tokenizer {name!r}: {type(tokenizer).__name__} has no fast form, which the library needs; "
            "expected one that transformers loads as a fast tokenizer",
            tokenizer=name,
        )
    with TemporaryDirectory() as target:
        tokenizer.save_pretrained(target)
        files = {path.name: path.read_bytes() for path in Path(target).iterdir() if path.is_file()}
    if settings := files.get("tokenizer_config.json"):
        config = {key: value for key, value in json.loads(settings).items() if key not in _OF_THE_CALL}
        files["tokenizer_config.json"] = json.dumps(config, indent=2, ensure_ascii=False).encode()
    return files


KEPT_FILES: Final = (
    TOKENIZER_JSON,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


@final
@dataclass(frozen=True, kw_only=True)
class TokenizerFiles:
    """A tokenizer as bytes.

    Attributes:
        name: what the user called it; for messages only, never part of an identity.
        files: file name to content; holds `tokenizer.json`, and of :data:`KEPT_FILES` whatever was there.
        revision: the Hub commit, when it came from the Hub.

    Raises:
        TokenizerError: `tokenizer.json` is missing, or one of the JSON files is not a JSON object.
    """

    name: str
    files: Mapping[str, bytes]
    revision: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "files", MappingProxyType(dict(sorted(self.files.items()))))
        if TOKENIZER_JSON not in self.files:
            raise TokenizerError(
                f"tokenizer {self.name!r}: no {TOKENIZER_JSON} among {sorted(self.files) or 'no files'}, and no file "
                f"that could be converted; expected {TOKENIZER_JSON}, or one of {', '.join(SLOW_FILES)}",
                tokenizer=self.name,
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.name, dict(self.files), self.revision)

    @classmethod
    def read(
        cls, directory: Path | str, *, name: str | None = None, revision: str | None = None
    ) -> TokenizerFiles:
        """Read the kept files of a directory; `name` defaults to the directory's path.

        Without a tokenizer.json they are what transformers makes of the files that are there.
        """
        folder = Path(directory)
        name = name if name is not None else str(folder)
        there = {path.name for path in folder.iterdir() if path.is_file()}
        if TOKENIZER_JSON in there or there.isdisjoint(SLOW_FILES):
            found = {file: read_bounded(folder / file, name) for file in KEPT_FILES if file in there}
        else:
            made = converted(folder, name)
            found = {file: made[file] for file in KEPT_FILES if file in made}
        return cls(name=name, files=found, revision=revision)

    @property
    def json_bytes(self) -> bytes:
        """The bytes of tokenizer.json."""
        return self.files[TOKENIZER_JSON]

    @cached_property
    def spec(self) -> dict[str, Any]:
        """The parsed tokenizer.json (do not modify).

        Raises:
            TokenizerError: it does not have the shape of a tokenizer's file.
        """
        spec = self._parse(TOKENIZER_JSON)
        require_tokenizer_shape(self.name, spec)
        return spec

    @cached_property
    def config(self) -> dict[str, Any]:
        """The parsed tokenizer_config.json over special_tokens_map.json; empty without them.

        Raises:
            TokenizerError: a file is no JSON object, or a named token in it is no text.
        """
        merged: dict[str, Any] = {}
        for file in ("special_tokens_map.json", "tokenizer_config.json"):
            values = self._parse(file)
            require_config_shape(self.name, file, values)
            merged |= {key: value for key, value in values.items() if value is not None}
        return merged

    @property
    def added_tokens(self) -> list[dict[str, Any]]:
        """The entries of `added_tokens` in tokenizer.json (do not modify)."""
        added: list[dict[str, Any]] | None = self.spec.get("added_tokens")
        return added or []

    @cached_property
    def _ids(self) -> dict[str, int]:
        return ids_by_token(self.spec)

    @property
    def tokens(self) -> Iterable[str]:
        """All tokens, of the vocabulary and added ones, as tokenizer.json spells them."""
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
        """The id that fills rows up by default: padding, else EOS."""
        return self.eos_id if self.pad_id is None else self.pad_id

    def matched_tokens(self, *, literal: bool) -> list[str]:
        """Return the contents of the added tokens that a text is searched for: `literal`, none that is special."""
        return [token["content"] for token in self.added_tokens if not (literal and token.get("special"))]

    def token_id(self, token: str) -> int | None:
        """Return the id of a token of the vocabulary or of the added tokens."""
        return self._ids.get(token)

    def with_special_tokens(self, tokens: Mapping[str, str]) -> TokenizerFiles:
        """Return the same with other named tokens, such as ``{"pad_token": "<unk>"}``.

        What the tokenizer itself puts around a text is its post-processor's to say, and stays.

        Raises:
            TokenizerError: one is no token of the vocabulary: a new id would be one that no model has learned.
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
        value: Any = self.config.get(key)
        return cast("dict[str, str]", value).get("content") if isinstance(value, dict) else value

    def _id(self, token: str | None) -> int | None:
        return None if token is None else self._ids.get(token)

    def _parse(self, file: str) -> dict[str, Any]:
        return parse_json_object(self.name, file, self.files.get(file, b"{}"))


def read_bounded(path: Path, name: str) -> bytes:
    """Return the content of a tokenizer's file.

    Raises:
        TokenizerError: it is larger than any tokenizer's.
    """
    require_size(name, path.name, path.stat().st_size)
    return path.read_bytes()


def _rebuild(name: str, files: dict[str, bytes], revision: str | None) -> TokenizerFiles:
    return TokenizerFiles(name=name, files=files, revision=revision)


_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_FILE_SUFFIXES: Final = (".json", ".model", ".txt", ".tiktoken")


def load_tokenizer(name_or_path: str | os.PathLike[str]) -> TokenizerFiles:
    """Return the files of a tokenizer.

    Args:
        name_or_path: a `tokenizer.json` file, a directory holding one, or a Hub id such as
            ``meta-llama/Llama-2-7b-hf``, optionally with ``@revision``. What exists on disk wins over the
            Hub; what the Hub's local cache holds is taken without asking the network.

    Raises:
        SourceNotFoundError: nothing there; names near local paths.
        TokenizerError: there, but without a usable tokenizer.json, or files that transformers converts.
        MissingExtraError: a download is needed and huggingface_hub is not installed, or a conversion and transformers.
    """
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
        return TokenizerFiles(name=name, files={TOKENIZER_JSON: read_bounded(path, name)})
    repo, _, revision = name.partition("@")
    if _HUB_ID.fullmatch(repo) is None or repo.endswith(_FILE_SUFFIXES):
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
    """Return a clause naming what lies nearest to a path that does not exist."""
    parent = path.parent
    while not parent.is_dir() and parent != parent.parent:
        parent = parent.parent
    child = path.parts[len(parent.parts)] if len(path.parts) > len(parent.parts) else path.name
    try:
        entries = sorted(entry.name for entry in parent.iterdir())
    except OSError:
        return ""
    near = difflib.get_close_matches(child, entries, n=3, cutoff=0.6)
    return f"; {str(parent)!r} has {', '.join(map(repr, near))}" if near else ""


def _hub_cache() -> Path:
    """Return the Hub's cache folder by huggingface_hub's own rules."""
    env = os.environ
    for key in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if env.get(key):
            return Path(env[key]).expanduser()
    home = env.get("HF_HOME") or Path(env.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return Path(home).expanduser() / "hub"


def _cached_snapshot(repo: str, revision: str) -> Path | None:
    """Return the cached snapshot of a branch, tag or commit if it holds a tokenizer.json."""
    if "/" in revision or revision in ("", ".", ".."):
        return None
    folder = _hub_cache() / f"models--{repo.replace('/', '--')}"
    ref = folder / "refs" / revision
    commit = ref.read_text().strip() if ref.is_file() else revision
    snapshot = folder / "snapshots" / commit
    return snapshot if (snapshot / TOKENIZER_JSON).is_file() else None


def _download(name: str, repo: str, revision: str) -> TokenizerFiles:
    try:
        from huggingface_hub import hf_hub_download, list_repo_files  # pyright: ignore[reportUnknownVariableType]
    except ImportError as error:
        raise MissingExtraError(
            f"tokenizer {name!r} is not in the local Hub cache and downloading it needs huggingface_hub: "
            "pip install 'tokenlake[etl]'"
        ) from error
    try:
        listed = list_repo_files(repo, revision=revision)
        # What is converted only where there is no tokenizer.json.
        slow = () if TOKENIZER_JSON in listed else (*SLOW_FILES, "config.json")
        wanted = [file for file in listed if file in KEPT_FILES or file in slow]
        paths = [Path(hf_hub_download(repo, file, revision=revision)) for file in wanted]
    except Exception as error:
        # The Hub's client lets through what its HTTP library raises, and that library changes with releases.
        raise SourceNotFoundError(
            f"tokenizer {name!r}: no such local path{_near(Path(name))}, not in the Hub's cache "
            f"{str(_hub_cache())!r}, and the Hub gave {type(error).__name__}: {error}. "
            "Check the spelling, log in for gated repositories, or pass a directory with a tokenizer.json",
            tokenizer=name,
        ) from error
    if not paths:
        return TokenizerFiles(name=name, files={})
    return TokenizerFiles.read(paths[0].parent, name=name, revision=paths[0].parent.name)


_NAMED: Final = ("bos_token", "eos_token", "unk_token", "pad_token", "cls_token", "sep_token", "mask_token")


def files_of(tokenizer: Any) -> TokenizerFiles:
    """Return the files of whatever names or holds a tokenizer.

    Args:
        tokenizer: files, what has been loaded from some, a Hub id, a path, a
            :class:`tokenlake.config.stages.TokenizerConfig`, or a fast tokenizer of transformers or tokenizers.

    Raises:
        ConfigError: it is none of these.
        TokenizerError, SourceNotFoundError: as of :func:`load_tokenizer`.
    """
    for found in (tokenizer, getattr(tokenizer, "files", None)):
        if isinstance(found, TokenizerFiles):
            return found
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if type(backend).__module__.partition(".")[0] == "tokenizers" and not hasattr(backend, "to_str"):
        raise ConfigError(
            "tokenizer: got a tokenizers.Tokenizer of tokenizers 1.0, which does not give its tokenizer.json away; "
            "pass the path of the tokenizer.json that it was loaded from, its folder or its Hub id"
        )
    if hasattr(backend, "to_str"):
        names = (*_NAMED, "padding_side", "chat_template")
        settings = {name: value for name in names if isinstance(value := getattr(tokenizer, name, None), str)}
        return TokenizerFiles(
            name=str(getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__),
            files={
                TOKENIZER_JSON: backend.to_str().encode(),
                "tokenizer_config.json": json.dumps(settings, ensure_ascii=False).encode(),
            },
        )
    # A configuration, which workers need not import to know it.
    named = getattr(tokenizer, "name_or_path", tokenizer)
    if isinstance(named, str | os.PathLike):
        files = load_tokenizer(cast("str | os.PathLike[str]", named))
        return files.with_special_tokens(getattr(tokenizer, "special_tokens", None) or {})
    raise ConfigError(
        f"tokenizer: got a {type(tokenizer).__name__}, must be a Hub id, a path, a TokenizerConfig, or a fast "
        "tokenizer of transformers or tokenizers"
    )
