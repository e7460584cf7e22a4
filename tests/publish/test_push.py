"""Publishing on the Hub: what arrives is the version byte for byte and nothing else,
or nothing at all is visible.
"""

from __future__ import annotations

import errno
import json
import random
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import huggingface_hub
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hub_support import writable_hub
from tests.servers.hub import TOKEN, Fault, HubServer, Repo
from tests.store.support import copy_store, shared_store
from tokenlake import Catalog, PushReport, push_to_hub, verify
from tokenlake.cli.app import main
from tokenlake.errors import (
    ConfigError,
    IntegrityError,
    SourceError,
    StoreError,
    VersionConflictError,
)
from tokenlake.etl.publish import HubRepository, PublishedFile, PushProgress, groups_of
from tokenlake.runtime.store import LocalStore, open_store

# huggingface_hub's own call of its HTTP library.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

REPO = "our-org/small"
GROUP_FILES = "tokenlake.etl.publish.upload.GROUP_FILES"


@pytest.fixture(scope="module")
def store(tokenizer_dir: Path) -> Path:
    return shared_store(tokenizer_dir)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    yield from writable_hub(monkeypatch, tmp_path)


def go(
    store: Path, name: str = "small@v1", repo: str = REPO, **options: Any
) -> PushReport:
    return push_to_hub(store, repo, name=name, **options)


def expected(store: Path, version: int) -> dict[str, bytes]:
    """Everything of a version that is published."""
    root = store / "small" / f"v{version}"
    files = {
        path.relative_to(root).as_posix(): path
        for path in root.rglob("*")
        if path.is_file()
    }
    kept = [
        name
        for name in files
        if not name.startswith(("quarantine/", "runs/", "claim.json"))
    ]
    return {name: files[name].read_bytes() for name in kept}


def tree(repo: Repo, revision: str = "main") -> dict[str, bytes]:
    found = dict(repo.commits[repo.refs[revision]])
    found.pop(".gitattributes", None)
    return found


def test_everything_listed_arrives_and_nothing_else_and_nothing_again(
    store: Path, server: HubServer
) -> None:
    report = go(store)
    repo = server.repos[REPO]
    assert tree(repo) == tree(repo, "v1") == expected(store, 1)
    assert {"manifest.json", "README.md", "config.yaml", "ledger/00000.json"} < set(
        tree(repo)
    )
    assert (
        report.outcome == "pushed"
        and report.created
        and report.private
        and repo.private
    )
    assert report.commit == repo.refs["main"] == repo.refs["v1"]
    assert report.left_out == ("quarantine/00001.parquet",)
    assert repo.messages[repo.refs["main"]] == "small v1"
    assert report.files == len(tree(repo)) and report.bytes == sum(
        map(len, tree(repo).values())
    )
    assert report.scanned_rows > 0 and report.findings == ()
    before = len(server.seen)
    again = go(store)
    assert (
        again.outcome == "unchanged"
        and again.commit == report.commit
        and not again.created
    )
    assert {seen.method for seen in server.seen[before:]} == {"GET"}


def test_a_newer_version_replaces_an_older_one_which_keeps_its_tag(
    store: Path, server: HubServer
) -> None:
    go(store)
    report = go(store, "small")
    repo = server.repos[REPO]
    assert tree(repo) == tree(repo, "v2") == expected(store, 2)
    assert tree(repo, "v1") == expected(store, 1)
    assert report.deleted == tuple(
        sorted(set(expected(store, 1)) - set(expected(store, 2)))
    )
    assert go(store).outcome == "unchanged"


def test_an_older_version_gets_a_branch_of_its_own(
    store: Path, server: HubServer
) -> None:
    go(store, "small@v2")
    with pytest.raises(
        ConfigError, match=r"newer than small v1; .* --revision only-v1"
    ):
        go(store)
    go(store, revision="only-v1")
    repo = server.repos[REPO]
    assert tree(repo) == expected(store, 2)
    assert tree(repo, "only-v1") == tree(repo, "v1") == expected(store, 1)
    assert "data/train-00001-00.parquet" in tree(repo)


@pytest.mark.parametrize("born", [False, True])
def test_a_public_repository_is_refused_unless_asked_for(
    store: Path, server: HubServer, born: bool
) -> None:
    server.born_public = born
    if not born:
        server.repo(REPO, {".gitattributes": ""})
    with pytest.raises(
        ConfigError, match=f"{REPO} is public: everybody would see small v1"
    ):
        go(store)
    assert tree(server.repos[REPO]) == {} and not server.lfs
    assert not go(store, public=True).private
    assert tree(server.repos[REPO]) == expected(store, 1)


def test_only_a_new_repository_is_made_public(store: Path, server: HubServer) -> None:
    server.repo(REPO, {".gitattributes": ""}, private=True)
    assert go(store, public=True).private and server.repos[REPO].private
    assert not go(store, repo="our-org/new", public=True).private
    assert not server.repos["our-org/new"].private


@pytest.mark.parametrize("there", ["nothing", "private", "public"])
def test_a_dry_run_needs_no_token(
    store: Path,
    server: HubServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    there: str,
) -> None:
    if there == "public":
        go(store, public=True)
    elif there == "private":
        go(store)
    monkeypatch.delenv("HF_TOKEN")
    before = len(server.seen)
    arguments = [
        "push",
        "small@v1",
        "--repo",
        REPO,
        "--store",
        str(store),
        "--dry-run",
        "--public",
    ]
    assert main(arguments) == 0
    told = capsys.readouterr().out
    if there == "public":
        assert "already, as v1; nothing was sent" in told
    else:
        # Whoever is not logged in cannot tell a private repository from none.
        assert (
            ", which nobody without a token can see, as v1: " in told
            and "nothing was sent" in told
        )
    assert {seen.method for seen in server.seen[before:]} == {"GET"}
    with pytest.raises(ConfigError, match="needs a token with write access"):
        go(store)


def test_a_dry_run_changes_nothing(store: Path, server: HubServer) -> None:
    report = go(store, dry_run=True)
    assert report.outcome == "would push" and report.created and report.commit is None
    assert not server.repos and {seen.method for seen in server.seen} == {"GET"}


@pytest.mark.parametrize(
    "path",
    sorted(["data/train-00001-00.parquet", "README.md", "tokenizer/tokenizer.json"]),
)
def test_damage_is_refused(
    store: Path, server: HubServer, tmp_path: Path, path: str
) -> None:
    damaged = copy_store(store, tmp_path / "store")
    file = damaged / "small" / "v1" / path
    data = bytearray(file.read_bytes())
    data[random.Random(path).randrange(4, len(data) // 2)] ^= 1
    file.write_bytes(data)
    with pytest.raises(IntegrityError, match=path):
        go(damaged, scan_data=0)
    assert all(not tree(repo) for repo in server.repos.values())


def test_files_that_nobody_listed_stay(
    store: Path, server: HubServer, tmp_path: Path
) -> None:
    littered = copy_store(store, tmp_path / "store")
    for name in (
        "data/train-99999-00.parquet",
        "tokenizer/notes.txt",
        ".env",
        "data/.DS_Store",
    ):
        (littered / "small" / "v1" / name).write_text("somebody's")
    go(littered)
    assert tree(server.repos[REPO]) == expected(store, 1)


def test_an_interrupted_push_shows_nothing_and_goes_on(
    store: Path, server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GROUP_FILES, 1)
    version = Catalog(open_store(store)).manifest("small", 1)
    last = version.files[-1]
    server.faults.append(Fault(f"/lfs-store/{last.sha256}", status=500, times=100))
    with pytest.raises(
        StoreError, match=r"uploading data/.*run the same command again"
    ):
        go(store)
    assert tree(server.repos[REPO]) == {} and len(server.lfs) == len(version.files) - 1
    server.faults.clear()
    before = len(server.seen)
    assert go(store).outcome == "pushed"
    sent = [seen.path for seen in server.seen[before:] if seen.method == "PUT"]
    assert sent == [f"/lfs-store/{last.sha256}"]
    assert tree(server.repos[REPO]) == expected(store, 1)


@pytest.mark.parametrize(
    "fault", [{"status": 500}, {"status": 503}, {"cut": 0}], ids=str
)
def test_passing_faults_are_survived(
    store: Path, server: HubServer, fault: dict[str, int]
) -> None:
    """One at each kind of request, all in one push."""
    places = ["/lfs-store/", "objects/batch", "/preupload/", "/tag/", "/repos/create"]
    server.faults += [Fault(where, **fault) for where in places]
    assert go(store).outcome == "pushed"
    assert not any(each.times for each in server.faults)
    assert (
        tree(server.repos[REPO]) == tree(server.repos[REPO], "v1") == expected(store, 1)
    )


def test_a_commit_whose_answer_was_lost_is_no_failure(
    store: Path, server: HubServer
) -> None:
    server.faults.append(Fault("/commit/main", cut=0))
    assert go(store).outcome == "pushed"
    assert tree(server.repos[REPO], "v1") == expected(store, 1)
    assert len(server.asked("/commit/main")) == 1


def test_a_push_that_ended_before_its_tag_only_tags(
    store: Path, server: HubServer
) -> None:
    server.faults.append(Fault("/tag/", status=500, times=100))
    with pytest.raises(StoreError, match="tagging v1"):
        go(store)
    server.faults.clear()
    before = len(server.seen)
    report = go(store)
    assert report.outcome == "tagged" and report.commit == server.repos[REPO].refs["v1"]
    assert [seen.path for seen in server.seen[before:] if seen.method != "GET"] == [
        f"/api/datasets/{REPO}/tag/{report.commit}"
    ]


def test_a_race_is_a_conflict(
    store: Path, server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = server.repo(REPO, {".gitattributes": ""}, private=True)
    upload = HubRepository.upload

    def meanwhile(self: Any, files: Any) -> Any:
        repo.commit({**repo.commits[repo.refs["main"]], "notes.txt": "somebody else"})
        return upload(self, files)

    monkeypatch.setattr(HubRepository, "upload", meanwhile)
    with pytest.raises(
        VersionConflictError, match="somebody else changed the repository meanwhile"
    ):
        go(store)
    assert tree(repo) == {"notes.txt": b"somebody else"} and "v1" not in repo.refs


def test_two_pushes_at_once_make_one_commit(
    store: Path, server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both find nothing; one creates and commits while the other is about to."""
    created = HubRepository.created

    def meanwhile(self: Any, *, public: bool) -> Any:
        monkeypatch.setattr(HubRepository, "created", created)
        assert go(store).outcome == "pushed"
        return created(self, public=public)

    monkeypatch.setattr(HubRepository, "created", meanwhile)
    assert go(store).outcome == "unchanged"
    assert len(server.repos[REPO].messages) == 1


def test_the_slower_of_two_equal_commits_is_no_failure(
    store: Path, server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = HubRepository.upload

    def meanwhile(self: Any, files: Any) -> Any:
        monkeypatch.setattr(HubRepository, "upload", upload)
        assert go(store).outcome == "pushed"
        return upload(self, files)

    monkeypatch.setattr(HubRepository, "upload", meanwhile)
    assert go(store).outcome == "pushed"
    assert len(server.repos[REPO].messages) == 1
    assert tree(server.repos[REPO], "v1") == expected(store, 1)


def test_a_taken_number_is_a_conflict(store: Path, server: HubServer) -> None:
    repo = server.repo(REPO, private=True)
    repo.commit({"manifest.json": "{}"})
    repo.commit({"manifest.json": "{}"}, "v1", tag=True)
    with pytest.raises(
        VersionConflictError,
        match=r"already has the tag v1, and it is not small v1 of this store",
    ):
        go(store)


def test_files_of_somebody_else_are_never_removed_nor_published_beside(
    store: Path, server: HubServer
) -> None:
    repo = server.repo(
        REPO, {"data/other.parquet": b"x", "LICENSE": "MIT"}, private=True
    )
    with pytest.raises(
        VersionConflictError,
        match=r"holds data/other\.parquet, which tokenlake did not push",
    ):
        go(store)
    repo.commit(
        {"LICENSE": "MIT", "README.md": "# soon", ".gitignore": "*.json\ndata/*\n"}
    )
    go(store)
    assert tree(repo) == {
        "LICENSE": b"MIT",
        ".gitignore": b"*.json\ndata/*\n",
    } | expected(store, 1)


def test_a_repository_is_for_one_dataset(
    store: Path, server: HubServer, tmp_path: Path
) -> None:
    repo = server.repo(REPO, private=True)
    manifest = Catalog(open_store(store)).manifest("small", 1)
    repo.commit({"manifest.json": replace(manifest, dataset="other").to_bytes()})
    with pytest.raises(ConfigError, match="holds other v1, not a version of small"):
        go(store)


@pytest.mark.parametrize(
    ("fault", "kind", "said"),
    [
        (Fault("/api/datasets/", status=401), ConfigError, "does not accept the token"),
        (Fault("/commit/", status=403), ConfigError, "the token does not permit this"),
        (
            Fault(
                "/preupload/", status=402, headers={"X-Error-Message": "quota exceeded"}
            ),
            StoreError,
            "no space",
        ),
        (
            Fault("/preupload/", status=404),
            ConfigError,
            "no such repository, organization or branch",
        ),
        (
            Fault("/api/datasets/", status=503, times=99),
            StoreError,
            "could not be reached",
        ),
    ],
    ids=lambda value: value.where if isinstance(value, Fault) else "",
)
def test_refusals_say_what_to_do(
    store: Path, server: HubServer, fault: Fault, kind: type[Exception], said: str
) -> None:
    server.faults.append(
        Fault(fault.where, fault.status, fault.times, headers=fault.headers)
    )
    with pytest.raises(kind, match=said) as refused:
        go(store)
    assert TOKEN not in str(refused.value)


def test_an_organization_of_others_a_wrong_token_none_and_no_network(
    store: Path, server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.forbidden.add("our-org")
    with pytest.raises(
        ConfigError, match=r"does not permit this .creating the repository"
    ):
        go(store)
    with pytest.raises(ConfigError, match="does not accept the token") as refused:
        go(store, token="hf_wrong_token_0123456789")
    assert "0123456789" not in str(refused.value)
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(
        ConfigError, match="needs a token with write access, and there is none"
    ):
        go(store)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(SourceError, match="HF_HUB_OFFLINE"):
        go(store)


def test_names_of_repositories_and_branches_are_checked(
    store: Path, server: HubServer
) -> None:
    for repo in ("small", "a/b/c", "../x", "hf://datasets/a/b", "a/..", "a b/c"):
        with pytest.raises(ConfigError, match="expected org/name"):
            go(store, repo=repo)
    for branch in ("v3", "a" * 40, "refs/pr/1", "a..b", ""):
        with pytest.raises(ConfigError, match="the branch"):
            go(store, revision=branch)
    assert not server.seen


def test_from_another_store_over_a_small_disk(
    store: Path, server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards come through the store's own reading, and no more than a group of them
    is on this disk.
    """
    memory = fsspec.filesystem("memory")
    memory.put(str(store), "/push-lake", recursive=True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(GROUP_FILES, 2)
    held: list[int] = []
    upload = HubRepository.upload

    def counted(self: Any, files: Any) -> Any:
        held.append(len(list(tmp_path.rglob("*.parquet"))))
        return upload(self, files)

    monkeypatch.setattr(HubRepository, "upload", counted)
    steps: list[PushProgress] = []
    try:
        report = push_to_hub(
            "memory://push-lake/small@v2", REPO, on_progress=steps.append
        )
    finally:
        memory.rm("/push-lake", recursive=True)
    assert tree(server.repos[REPO]) == expected(store, 2)
    assert max(held) == 2 and not list(tmp_path.rglob("*.parquet"))
    done = [step.bytes for step in steps]
    assert done == sorted(done) and done[-1] == report.bytes == steps[-1].bytes_total


@given(st.lists(st.integers(1, 2 << 30), max_size=60))
def test_groups_keep_the_order_and_the_limits(sizes: list[int]) -> None:
    shards = [
        PublishedFile(f"data/{n}.parquet", size, "") for n, size in enumerate(sizes)
    ]
    groups = list(groups_of(shards))
    assert [shard for group in groups for shard in group] == shards
    for group in groups:
        assert len(group) <= 16
        assert len(group) == 1 or sum(shard.bytes for shard in group) <= 1 << 30


def test_a_disk_without_room_says_where(
    store: Path, server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")

    def no_room(self: Any, key: str, path: Path) -> None:
        raise full

    monkeypatch.setattr(LocalStore, "download", no_room)
    with pytest.raises(
        StoreError, match=r"cannot store a copy of small/v1/data/.*No space.*TMPDIR"
    ):
        go(store)
    assert tree(server.repos[REPO]) == {}


def test_what_arrived_is_readable(
    store: Path, server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By load_dataset from a folder, and, put where a version lies, by the store's
    own readers.
    """
    import datasets

    from tokenlake.runtime.loader import open as open_dataset

    go(store)
    for name, data in tree(server.repos[REPO]).items():
        path = tmp_path / "lake" / "small" / "v1" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True)
    folder = str(tmp_path / "lake" / "small" / "v1")
    loaded = datasets.load_dataset(
        folder, split="train", cache_dir=str(tmp_path / "cache")
    )
    ours = open_dataset(tmp_path / "lake", "small@v1")
    assert (
        loaded["input_ids"][:]
        == ours.read(0, len(ours)).column("input_ids").to_pylist()
    )
    # What `hf download --local-dir` leaves beside it.
    (tmp_path / "lake/small/v1/.gitattributes").write_text("")
    (tmp_path / "lake/small/v1/.cache/huggingface").mkdir(parents=True)
    (tmp_path / "lake/small/v1/.cache/huggingface/x.lock").write_text("")
    copy = open_store(tmp_path / "lake")
    assert verify(copy, "small", 1, deep=True).ok
    (tmp_path / "lake/small/v1/claim.json").write_bytes(
        (store / "small/v1/claim.json").read_bytes()
    )
    problems = {
        (problem.path, problem.problem) for problem in verify(copy, "small", 1).problems
    }
    assert problems == {
        ("quarantine/00001.parquet", "missing"),
        (".gitattributes", "unlisted"),
        (".cache/huggingface/x.lock", "unlisted"),
    }
    assert (
        len(ours)
        == json.loads((Path(folder) / "manifest.json").read_text())["splits"]["train"][
            "rows"
        ]
    )
    shutil.rmtree(tmp_path / "lake")
