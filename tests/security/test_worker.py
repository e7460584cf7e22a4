"""What a deployment's parameters may not reach: files behind links, tokenizers,
templates.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.lazily import lazily
from tests.sources.remote_support import documents, jsonl, listed
from tokenlake.errors import ConfigError, SourceError
from tokenlake.runtime.store import allowed as allowed_places

policy: Any = lazily("tokenlake.runs.policy")

requests: Any = lazily("tokenlake.runs.request")
bounds: Any = lazily("tokenlake_tasks.bounds")


def check(
    environment: dict[str, str], output: str = "/data/out", **dataset: Any
) -> None:
    given = {
        "data_files": "s3://any",
        "name": "s",
        "tokenizer": "org/tokenizer",
        **dataset,
    }
    policy.check_paths(
        requests.resolve_request(
            {"name": "x", "datasets": [given], "save": {"output_dir": output}}
        ),
        environment,
    )


def test_text_that_a_store_names_is_not_read_for_a_deployment() -> None:
    """Whoever writes the store could name any file of the worker's machine there."""
    dataset = {
        "name": "s",
        "dataset": "old@v1",
        "retokenize": True,
        "tokenizer": "org/tokenizer",
    }
    asked = {
        "name": "x",
        "datasets": [dataset],
        "pack": {"enabled": True},
        "save": {"output_dir": "/data/out"},
    }
    with pytest.raises(
        ConfigError,
        match=r"datasets.s.retokenize: .* which runs of a deployment do not",
    ):
        policy.check_paths(requests.resolve_request(asked), {})


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    for name in ("raw", "secret"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.jsonl").write_bytes(jsonl(documents(3)))
    (tmp_path / "raw" / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "raw" / "b.jsonl").symlink_to(tmp_path / "secret" / "a.jsonl")
    return tmp_path


OUTSIDE = "is outside the places that this worker allows"


@pytest.mark.parametrize(
    "files",
    [
        "raw/link/a.jsonl",
        "raw/b.jsonl",
        "raw/../secret/a.jsonl",
        "raw/link/*.jsonl",
        "secret",
        "raw/link/../x",
    ],
)
def test_inputs_through_links_and_dots(folders: Path, files: str) -> None:
    with pytest.raises(ConfigError, match=OUTSIDE):
        check(
            {"TOKENLAKE_ALLOWED_INPUTS": str(folders / "raw")},
            data_files=f"{folders}/{files}",
        )
    with pytest.raises(ConfigError, match=OUTSIDE):
        check(
            {"TOKENLAKE_ALLOWED_INPUTS": str(folders / "raw")},
            data_files=f"file://{folders}/{files}",
        )


@pytest.mark.parametrize(
    "files",
    [
        "raw/*/../../secret/a.jsonl",
        "raw/**/../../secret/*.jsonl",
        "raw/?/../../secret/a.jsonl",
        "raw/[a-z]*/../../secret/a.jsonl",
        "raw/{sub,../secret}/*.jsonl",
        "raw/{sub,link}/a.jsonl",
        "{raw,secret}/a.jsonl",
        "raw/{0..1}/../../secret/a.jsonl",
        "raw/{a,..}/secret/a.jsonl",
        "raw-2/a.jsonl",
        "raw/link/*/../a.jsonl",
    ],
)
def test_globs_and_braces_that_lead_out(
    folders: Path, files: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each spelling, of a build and of `clean`; the listing of a deployment's run
    refuses it by itself, too.
    """
    (folders / "raw" / "sub").mkdir()
    allowed = {"TOKENLAKE_ALLOWED_INPUTS": str(folders / "raw")}
    refused = rf"{OUTSIDE}|has '\.\.' after a wildcard"
    for entry in (
        f"{folders}/{files}",
        f"file://{folders}/{files}",
        f"FILE://{folders}/{files}",
    ):
        with pytest.raises(ConfigError, match=refused):
            check(allowed, data_files=entry)
        cleaned = {
            "name": "x",
            "datasets": [{"name": "s", "data_files": entry}],
            "clean": {},
        }
        with pytest.raises(ConfigError, match=refused):
            policy.check_cleaning(requests.resolve_request(cleaned), allowed)
    monkeypatch.setattr(allowed_places, "_bounded_here", True)
    monkeypatch.setenv("TOKENLAKE_ALLOWED_INPUTS", str(folders / "raw"))
    with pytest.raises((ConfigError, SourceError)):
        listed(f"{folders}/{files}")


@pytest.mark.parametrize(
    "url",
    [
        "s3://lake/raw/*/../../secret/a.jsonl",
        "s3://lake/raw/{a,../secret}/a.jsonl",
        "s3://lake/raw-evil/a.jsonl",
        "s3://lake/raw*/a.jsonl",
        "s3://lake//raw/a.jsonl",
        "s3://lake/{raw,secret}/a.jsonl",
        "s3://LAKE/raw/a.jsonl",
        "s3://lake.evil/raw/a.jsonl",
        "gs://lake/raw/a.jsonl",
        "https://host/sets/{a,../secret}/a.jsonl",
        "https://host/sets/%2e%2e/secret/a.jsonl",
        "https://host/sets/%252e%252e/secret/a.jsonl",
        "https://host/sets/%25252e%25252e/secret/a.jsonl",
        "https://host/sets/..;x/secret/a.jsonl",
        "https://host/sets/..%5Csecret/a.jsonl",
        "https://host/sets/.\t./secret/a.jsonl",
        "https://host/sets-2/a.jsonl",
        "https://host./sets/a.jsonl",
        "https://host:8443/sets/a.jsonl",
        "https://host.evil/sets/a.jsonl",
        "http://host/sets/a.jsonl",
        "https://evil/https://host/sets/a.jsonl",
        "hf://datasets/our-org/../other/name/a.jsonl",
        "hf://datasets/our-org-2/name/a.jsonl",
        "hf://datasets/{our-org,other}/name/a.jsonl",
        "hf://datasets/our-org@main/name/a.jsonl",
        "hf://datasets/our-org/name@../a.jsonl",
        "hf://datasets/our-org/name@..%2F..%2Fother/a.jsonl",
        "hf://Datasets/our-org/name/a.jsonl",
        "hf://our-org/model/a.jsonl",
    ],
)
def test_urls_that_lead_out(url: str) -> None:
    allowed = "s3://lake/raw:https://host/sets:hf://datasets/our-org"
    with pytest.raises(ConfigError, match=OUTSIDE):
        check({"TOKENLAKE_ALLOWED_INPUTS": allowed}, data_files=url)


@pytest.mark.parametrize(
    "url",
    [
        "s3://lake/raw",
        "s3a://lake/raw/*/a.jsonl",
        "s3://lake/raw/{a,b}/*.jsonl",
        "https://HOST/sets/a.jsonl",
        "https://host:443/sets/a-{0..3}.jsonl",
        "hf://datasets/our-org/name@refs/convert/parquet/a.jsonl",
        "hf://datasets/other/one@v2/a.jsonl",
        "hf://datasets/other/one@refs%2Fpr%2F1/a.jsonl",
    ],
)
def test_urls_inside(url: str) -> None:
    allowed = (
        "s3://lake/raw:https://host/sets:hf://datasets/our-org:hf://datasets/other/one"
    )
    check({"TOKENLAKE_ALLOWED_INPUTS": allowed}, data_files=url)


@pytest.mark.parametrize(
    "name", ["our-org/../other/name", "other/name", "our-org-2/name", "our-org/name@.."]
)
def test_datasets_of_the_hub_that_are_named_without_a_url(name: str) -> None:
    allowed = {"TOKENLAKE_ALLOWED_INPUTS": "hf://datasets/our-org"}
    check(allowed, data_files="our-org/name@v2", type="huggingface")
    with pytest.raises(ConfigError, match=OUTSIDE):
        check(allowed, data_files=name, type="huggingface")


def test_outputs_are_compared_part_by_part() -> None:
    allowed = {"TOKENLAKE_ALLOWED_OUTPUTS": "s3://lake/tokens:hf://datasets/our-org"}
    check(allowed, output="s3://lake/tokens/new")
    for output in (
        "s3://lake/tokens-2",
        "s3://lake/tokens/../raw",
        "s3://lake/tokens/%2e%2e/raw",
    ):
        with pytest.raises(ConfigError, match=OUTSIDE):
            check(allowed, output=output)
    for repository in ("our-org/../other/x", "other/x", "our-org-2/x"):
        with pytest.raises(ConfigError, match=OUTSIDE):
            policy.check_repository(repository, allowed)


def test_a_folder_that_changes_after_the_check_is_held_against_the_list_again(
    folders: Path, deployment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder that was checked is a link to another place by the time it is
    listed.
    """
    monkeypatch.setattr(allowed_places, "_bounded_here", False)
    monkeypatch.setenv("TOKENLAKE_ALLOWED_INPUTS", f"{folders}/raw")
    source = folders / "raw" / "sub"
    source.mkdir()
    (source / "a.jsonl").write_bytes(jsonl(documents(3)))
    asked = {
        "name": "x",
        "datasets": [
            {"name": "s", "data_files": f"{source}/*.jsonl", "tokenizer": "gpt2"}
        ],
    }
    bounds.bounds_of_run().require(policy.check_paths, requests.resolve_request(asked))
    assert len(listed(f"{source}/*.jsonl")) == 1
    source.rename(folders / "raw" / "before")
    source.symlink_to(folders / "secret")
    with pytest.raises(
        SourceError, match="outside the folders that this environment allows"
    ):
        listed(f"{source}/*.jsonl")


def test_a_glob_of_folders_is_judged_by_the_folder_above(folders: Path) -> None:
    with pytest.raises(ConfigError, match=OUTSIDE):
        check(
            {"TOKENLAKE_ALLOWED_INPUTS": str(folders / "raw")},
            data_files=f"{folders}/raw*/a.jsonl",
        )


def test_dots_behind_a_wildcard_are_refused_without_a_list(folders: Path) -> None:
    """Taking them out of the text also took out the wildcard before them, and
    another folder was read.
    """
    with pytest.raises(ConfigError, match=r"has '\.\.' after a wildcard"):
        listed(f"{folders}/raw/*/../../secret/a.jsonl")


def test_links_that_only_the_listing_finds(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(listed(f"{folders}/raw/*.jsonl")) == 2
    check(
        {"TOKENLAKE_ALLOWED_INPUTS": str(folders / "raw")},
        data_files=f"{folders}/raw/*.jsonl",
    )
    monkeypatch.setenv("TOKENLAKE_ALLOWED_INPUTS", str(folders / "raw"))
    with pytest.raises(
        SourceError,
        match=r"b\.jsonl: a link points to .*secret.*outside the folders that this environment",
    ):
        listed(f"{folders}/raw/*.jsonl")
    assert len(listed(f"{folders}/raw/a.jsonl")) == 1
    monkeypatch.setenv("TOKENLAKE_ALLOWED_INPUTS", f"{folders}/raw:{folders}/secret")
    assert len(listed(f"{folders}/raw/*.jsonl")) == 2


def test_outputs_through_links(folders: Path) -> None:
    allowed = {"TOKENLAKE_ALLOWED_OUTPUTS": str(folders / "raw")}
    check(allowed, output=f"{folders}/raw/new")
    for output in ("raw/link/new", "raw/../secret", "elsewhere"):
        with pytest.raises(ConfigError, match=OUTSIDE):
            check(allowed, output=f"{folders}/{output}")


def test_files_of_documents_to_leave_out(folders: Path) -> None:
    with pytest.raises(ConfigError, match=rf"exclude of 's': .* {OUTSIDE}"):
        check(
            {"TOKENLAKE_ALLOWED_INPUTS": f"{folders}/raw:s3://any"},
            exclude=f"{folders}/secret/a.parquet",
        )


def test_tokenizers(folders: Path) -> None:
    inputs = {"TOKENLAKE_ALLOWED_INPUTS": f"{folders}/raw:s3://any"}
    check(inputs)
    check(inputs, tokenizer=f"{folders}/raw")
    for path in (
        f"{folders}/secret",
        f"{folders}/raw/link",
        "../secret",
        "~/.ssh",
        f"{folders}/raw/../secret",
    ):
        with pytest.raises(ConfigError, match=rf"the tokenizer of 's': .* {OUTSIDE}"):
            check(inputs, tokenizer=path)
    listed_only = {
        "TOKENLAKE_ALLOWED_TOKENIZERS": f"{folders}/raw:org/*:openai-community/gpt2"
    }
    for name in ("org/any", "org/any@v2", "openai-community/gpt2", f"{folders}/raw"):
        check(listed_only, tokenizer=name)
    for name in ("other/any", "openai-community/gpt2-xl", "gpt2"):
        with pytest.raises(ConfigError, match="is not allowed on this worker"):
            check(listed_only, tokenizer=name)
    with pytest.raises(ConfigError, match=OUTSIDE):
        check(listed_only, tokenizer=f"{folders}/secret")


def test_templates_that_are_files(folders: Path) -> None:
    inputs = {"TOKENLAKE_ALLOWED_INPUTS": f"{folders}/raw:s3://any"}
    check(inputs, chat={"template": "{{ messages }}"})
    check(inputs, chat={"template": "tool_use"})
    check(inputs, chat={"template": f"{folders}/raw/a.jsonl"})
    for path in ("/etc/passwd", f"{folders}/secret/a.jsonl", f"{folders}/raw/b.jsonl"):
        with pytest.raises(ConfigError, match=rf"the template of 's': .* {OUTSIDE}"):
            check(inputs, chat={"template": path})


def test_functions_are_refused_unless_named() -> None:
    for name in (
        "os:system",
        "subprocess:run",
        "builtins:eval",
        "our_callbacks.other:run",
    ):
        with pytest.raises(ConfigError, match="is not allowed on this worker"):
            check(
                {"TOKENLAKE_ALLOWED_CALLABLES": "our_callbacks.text:*"},
                transforms=[{"apply": name}],
            )
        with pytest.raises(ConfigError, match="nothing"):
            check({}, transforms=[{"apply": name}])
    check(
        {"TOKENLAKE_ALLOWED_CALLABLES": "our_callbacks.text:*"},
        transforms=[{"apply": "our_callbacks.text:clean"}],
    )


LAKE = {
    "TOKENLAKE_ALLOWED_INPUTS": "s3://lake/raw:hf://datasets/our-org:https://s3.here",
    "TOKENLAKE_ALLOWED_OUTPUTS": "s3://lake/tokens:https://s3.here",
    "TOKENLAKE_ALLOWED_VARIABLES": "LAKE_*",
    "TOKENLAKE_ALLOWED_BLOCKS": "lake-*",
    "LAKE_ADDRESS": "http://elsewhere",
}


@pytest.fixture(params=["input", "output"])
def check_options(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Callable[..., None]:
    """Check options of an input, or of the store."""

    def check(environment: dict[str, str] = LAKE, **options: Any) -> None:
        dataset: dict[str, Any] = {
            "name": "s",
            "data_files": "s3://lake/raw",
            "tokenizer": "gpt2",
        }
        save: dict[str, Any] = {"output_dir": "s3://lake/tokens"}
        (dataset if request.param == "input" else save)["storage_options"] = options
        policy.check_paths(
            requests.resolve_request(
                {"name": "x", "datasets": [dataset], "save": save}
            ),
            environment,
        )

    return check


@pytest.mark.parametrize(
    "options",
    [
        {
            "key": {"env": "LAKE_KEY"},
            "secret": {"block": "lake-secret"},
            "endpoint_url": "https://s3.here",
        },
        {
            "client_kwargs": {
                "endpoint_url": "https://s3.here",
                "region_name": "eu-west-1",
            },
            "anon": True,
        },
        {
            "headers": {"Authorization": {"env": "LAKE_KEY"}, "User-Agent": "us"},
            "username": "me",
        },
        {"query": {"a.jsonl": {"env": "LAKE_QUERY"}}, "token": {"block": "lake-token"}},
        {
            "query": {"env": "LAKE_QUERY"},
            "requester_pays": True,
            "token": False,
            "project": "our-project",
        },
    ],
    ids=str,
)
def test_options_that_are_known(
    check_options: Callable[..., None], options: dict[str, Any]
) -> None:
    check_options(**options)


KEY = {"env": "LAKE_KEY"}


@pytest.mark.parametrize(
    "options",
    [
        *(
            {"endpoint_url": value}
            for value in ({"env": "LAKE_HOST"}, {"block": "lake-host"}, {"url": KEY})
        ),
        *(
            {"client_kwargs": {name: KEY}}
            for name in ("endpoint_url", "base_url", "proxy", "region_name")
        ),
        *(
            {name: KEY}
            for name in (
                "endpoint",
                "region",
                "project",
                "tenant_id",
                "anon",
                "client_kwargs",
            )
        ),
        *(
            {name: KEY}
            for name in (
                "host",
                "account_name",
                "proxies",
                "connection_string",
                "profile",
                "fo",
            )
        ),
        *(
            {name: "https://s3.here"}
            for name in ("region", "project", "token_uri", "gateway", "verify")
        ),
        *({"endpoint": value} for value in ("http://elsewhere", "elsewhere", 7)),
        *(
            {"headers": {name: KEY}}
            for name in ("Host", "X-Forwarded-Host", "X-Original-URL")
        ),
        {"endpoint_url": "https://s3.here.elsewhere"},
        {"client_kwargs": {"trace_configs": [KEY]}},
        {"headers": {"Authorization": {"to": KEY}}},
        {"token": {"type": KEY, "private_key": KEY}},
        {"key": [KEY]},
        {"region_name": "x@elsewhere/"},
    ],
    ids=str,
)
def test_options_that_may_lead_elsewhere(
    check_options: Callable[..., None], options: dict[str, Any]
) -> None:
    """Nothing but what is known: also where nothing is bounded, because secrets of
    the worker's machine go along.
    """
    unbounded = {key: value for key, value in LAKE.items() if not key.endswith("PUTS")}
    for environment in (LAKE, unbounded):
        with pytest.raises(ConfigError, match=r"storage_options of .*: \w+"):
            check_options(environment, **options)


@pytest.mark.parametrize(
    "reference", [{"env": "HF_TOKEN"}, {"env": "XLAKE_A"}, {"block": "other"}], ids=str
)
def test_secrets_that_are_not_named(
    check_options: Callable[..., None],
    reference: dict[str, str],
    deployment: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for environment in (LAKE, {}):
        with pytest.raises(
            ConfigError, match=r"\{(env|block): \w+\} is not allowed on this worker"
        ):
            check_options(environment, key=reference)
    monkeypatch.setenv("TOKENLAKE_ALLOWED_VARIABLES", "LAKE_*")
    with pytest.raises(ConfigError, match="is not allowed on this worker"):
        bounds.bounds_of_run().require(policy.check_reference, reference)  # of a push
    bounds.bounds_of_run().require(policy.check_reference, {"env": "LAKE_TOKEN"})


def test_secrets_that_turn_out_to_be_addresses(
    check_options: Callable[..., None], deployment: None, folders: Path
) -> None:
    with pytest.raises(ConfigError, match=r"\{env: LAKE_ADDRESS\} contains an address"):
        check_options(key={"env": "LAKE_ADDRESS"})
    for value in ("http://elsewhere", f"{folders}/secret/a.jsonl"):
        with pytest.raises(
            ConfigError, match=r"\{block: lake-key\} contains an address or a path"
        ):
            bounds.bounds_of_run().require_secret("lake-key", value)
    bounds.bounds_of_run().require_secret(
        "lake-key", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
    )


@pytest.fixture
def deployment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of one, as far as Prefect tells."""
    monkeypatch.setattr(allowed_places, "_bounded_here", False)
    monkeypatch.setenv(
        "PREFECT__RUNTIME__DEPLOYMENT__ID", "7b7c1f6e-0a52-4b5e-9d0c-1d2f3a4b5c6d"
    )


SHADOW = "root:$y$j9T$planted:19000\n"


def resolve_bounded(config: str, files: str | None = None, **options: Any) -> Any:
    """Resolve a request within the bounds of the current run."""
    return requests.resolve_request(
        config, files, bounds=bounds.bounds_of_run(), **options
    )


class TestConfigurations:
    """A file that is named as a configuration is bounded before it is read, and its
    contents are not told.
    """

    @pytest.fixture
    def lake(
        self, tmp_path: Path, deployment: None, monkeypatch: pytest.MonkeyPatch
    ) -> Path:
        (tmp_path / "configs").mkdir()
        (tmp_path / "shadow").write_text(SHADOW)
        (tmp_path / "shadow").chmod(0)
        (tmp_path / "configs" / "link.yaml").symlink_to(tmp_path / "shadow")
        monkeypatch.setenv("TOKENLAKE_ALLOWED_CONFIGS", str(tmp_path / "configs"))
        return tmp_path

    @pytest.mark.parametrize(
        "name", ["shadow", "configs/link.yaml", "configs/../shadow", "none.yaml"]
    )
    def test_others_are_refused(self, lake: Path, name: str) -> None:
        with pytest.raises(ConfigError, match=rf"config: .* {OUTSIDE}"):
            resolve_bounded(f"{lake}/{name}", "a.jsonl")

    def test_without_a_list_only_our_own_are_read(
        self, lake: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (lake / "configs" / "good.yaml").write_text(
            "pack: {enabled: true, seq_length: 64}"
        )
        assert resolve_bounded(f"{lake}/configs/good.yaml", "a.jsonl").name == "good"
        monkeypatch.delenv("TOKENLAKE_ALLOWED_CONFIGS")
        assert resolve_bounded("demo", "a.jsonl").name == "demo"
        with pytest.raises(ConfigError, match=OUTSIDE):
            resolve_bounded(f"{lake}/configs/good.yaml", "a.jsonl")

    @pytest.mark.parametrize(
        ("text", "lines"),
        [
            (
                "a: 1\nplanted: planted\npack: {seq_length: planted}\n",
                "line 1, line 2, line 3",
            ),
            ("a: 1\nplanted: 1\nplanted: 2\n", "line 3"),
            ("a: 1\nb: *planted\n", "line 2"),
            ("a: !planted x\n", "line 1"),
            (f"{SHADOW}b: {{planted\n", "line 2"),
            ("planted\n", ""),
            ("- planted\n", ""),
            ("a: 2024-13-45\n", ""),
            (
                "mix: {weights: {planted: 1.0}, epochs: 1}\ndatasets: [{data_files: x, name: other}]",
                "",
            ),
        ],
    )
    def test_what_they_hold_is_not_told(
        self, lake: Path, text: str, lines: str
    ) -> None:
        path = lake / "configs" / "notes.yaml"
        path.write_text(text)
        with pytest.raises(
            ConfigError, match=r"notes\.yaml: no valid configuration"
        ) as caught:
            resolve_bounded(str(path), None if "datasets" in text else "a.jsonl")
        assert "planted" not in str(caught.value) + repr(caught.value.details)
        assert lines in str(caught.value)

    def test_what_came_with_the_run_is_told(self, lake: Path) -> None:
        path = lake / "configs" / "notes.yaml"
        path.write_text("planted: 1\ndatasets: [{data_files: x, name: planted}]")
        with pytest.raises(
            ConfigError, match=r"pack\.seq_lenght \(override\): unknown key"
        ) as caught:
            resolve_bounded(str(path), overrides=["pack.seq_lenght=5"])
        with pytest.raises(
            ConfigError, match=r"override of datasets\.y\.data_files: it does not match"
        ) as fitting:
            resolve_bounded(str(path), overrides=["datasets.y.data_files=5"])
        assert "planted" not in f"{caught.value} {fitting.value}"
