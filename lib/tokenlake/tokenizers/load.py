"""Find a tokenizer's files: a `tokenizer.json`, a directory with one, or a Hugging Face Hub id.

Only the files' bytes are kept (:class:`TokenizerFiles`): they are what a dataset version stores beside its
data and what its fingerprint is taken of. Neither `transformers` nor, when the Hub's local cache already
holds the repository, `huggingface_hub` is imported (0.2 and 0.5 s in every process).
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tokenlake.errors import MissingExtraError, SourceNotFoundError, TokenizerError
from tokenlake.tokenizers.files import TOKENIZER_JSON, TokenizerFiles, is_kept

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
        TokenizerError: there, but without a usable tokenizer.json.
        MissingExtraError: a download is needed and huggingface_hub is not installed.
    """
    name = os.fspath(name_or_path)
    path = Path(name).expanduser()
    if path.is_dir():
        return TokenizerFiles.read(path, name=name)
    if path.is_file():
        return _from_file(path, name)
    if not _looks_like_hub_id(name):
        raise SourceNotFoundError(
            f"tokenizer {name!r}: no such file or directory{_near(path)}; "
            "expected a tokenizer.json, a directory holding one, or a Hub id like 'org/name'",
            tokenizer=name,
        )
    return _from_hub(name)


def _from_file(path: Path, name: str) -> TokenizerFiles:
    if path.name == TOKENIZER_JSON:
        return TokenizerFiles.read(path.parent, name=name)
    if path.suffix != ".json":
        raise TokenizerError(
            f"tokenizer {name!r}: cannot read a {path.suffix or 'suffix-less'} file; expected a fast "
            "tokenizer's tokenizer.json. Convert it once with transformers: "
            "AutoTokenizer.from_pretrained(...).save_pretrained(directory)",
            tokenizer=name,
        )
    return TokenizerFiles(name=name, files={TOKENIZER_JSON: path.read_bytes()})


def _looks_like_hub_id(name: str) -> bool:
    repo = name.partition("@")[0]
    return _HUB_ID.fullmatch(repo) is not None and not repo.endswith(_FILE_SUFFIXES)


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


def _from_hub(name: str) -> TokenizerFiles:
    repo, _, revision = name.partition("@")
    snapshot = _cached_snapshot(repo, revision or "main", os.environ)
    if snapshot is None:
        snapshot = _download(name, repo, revision or "main")
    return TokenizerFiles.read(snapshot, name=name, revision=snapshot.name)


def _hub_cache(env: Mapping[str, str]) -> Path:
    """Return the Hub's cache folder by huggingface_hub's own rules."""
    for key in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if env.get(key):
            return Path(env[key]).expanduser()
    home = env.get("HF_HOME") or Path(env.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return Path(home).expanduser() / "hub"


def _cached_snapshot(repo: str, revision: str, env: Mapping[str, str]) -> Path | None:
    """Return the cached snapshot of a branch, tag or commit if it holds a tokenizer.json."""
    if "/" in revision or revision in ("", ".", ".."):
        return None
    folder = _hub_cache(env) / f"models--{repo.replace('/', '--')}"
    ref = folder / "refs" / revision
    commit = ref.read_text().strip() if ref.is_file() else revision
    snapshot = folder / "snapshots" / commit
    return snapshot if (snapshot / TOKENIZER_JSON).is_file() else None


def _download(name: str, repo: str, revision: str) -> Path:
    try:
        from huggingface_hub import hf_hub_download, list_repo_files  # pyright: ignore[reportUnknownVariableType]
    except ImportError as error:
        raise MissingExtraError(
            f"tokenizer {name!r} is not in the local Hub cache and downloading it needs huggingface_hub: "
            "pip install 'tokenlake[etl]'"
        ) from error
    try:
        available = list_repo_files(repo, revision=revision)
        _require_json(name, available)
        paths = [hf_hub_download(repo, file, revision=revision) for file in available if is_kept(file)]
    except TokenizerError:
        raise
    except Exception as error:
        # The Hub's client lets through what its HTTP library raises, and that library changes with releases.
        raise SourceNotFoundError(
            f"tokenizer {name!r}: no such local path{_near(Path(name))}, not in the Hub's cache "
            f"{str(_hub_cache(os.environ))!r}, and the Hub gave {type(error).__name__}: {error}. "
            "Check the spelling, log in for gated repositories, or pass a directory with a tokenizer.json",
            tokenizer=name,
        ) from error
    return Path(next(path for path in paths if Path(path).name == TOKENIZER_JSON)).parent


def _require_json(name: str, available: list[str]) -> None:
    if TOKENIZER_JSON in available:
        return
    raise TokenizerError(
        f"tokenizer {name!r}: the repository holds no tokenizer.json (it has "
        f"{', '.join(sorted(available)[:8]) or 'no files'}); only fast tokenizers can be used. Convert it: "
        "AutoTokenizer.from_pretrained(...).save_pretrained(directory), then pass that directory",
        tokenizer=name,
    )
