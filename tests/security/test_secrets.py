"""References to secrets: resolved where they are used, and to be found nowhere else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, quote_plus, unquote, unquote_plus

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from yarl import URL

from tests.lazily import lazily
from tests.no_job import no_job
from tests.servers.http import HttpServer
from tests.sources.remote_support import documents, jsonl, listed
from tokenlake import load_config
from tokenlake.base import provide_blocks, remember, resolve_options, scrub
from tokenlake.base import secrets as references
from tokenlake.errors import ConfigError, SourceError, WorkerError, without_credentials
from tokenlake.etl import WorkerPool, build_dataset
from tokenlake.runtime.store import close_filesystems

policy: Any = lazily("tokenlake.runs.policy")

build_runs: Any = lazily("tokenlake.runs.build_run")
requests: Any = lazily("tokenlake.runs.request")

SECRET = "Bearer opensesame-7d1f0c55"
PLANTED = "planted-5b1c77e09a"

HIDDEN = "**********"
"""What stands in a message in the place of a secret."""


# What libraries make of a query before they put it in a message.
SPELLINGS: list[Callable[[str], str]] = [
    *(
        str,
        unquote,
        unquote_plus,
        quote,
        quote_plus,
        partial(quote, safe=""),
        repr,
        json.dumps,
        escape,
    ),
    lambda text: quote(quote(text)),
    lambda text: URL.build(host="h", query_string=text).query_string,
    lambda text: str(dict(parse_qsl(text))),
    lambda text: re.sub("%[0-9A-F]{2}", lambda found: found[0].lower(), text),
]


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test begins and ends without secrets."""
    monkeypatch.setattr(references, "_BLOCKS", {})
    monkeypatch.setattr(references, "_KNOWN", set())
    yield
    close_filesystems()


@pytest.fixture
def server() -> Iterator[HttpServer]:
    with HttpServer({"in/a.jsonl": jsonl(documents(300))}) as server:
        server.secret = SECRET
        yield server


def config(
    server: HttpServer, tmp_path: Path, tokenizer: Path, options: dict[str, Any]
) -> dict[str, Any]:
    return {
        "name": "set",
        "datasets": [
            {
                "name": "s",
                "data_files": f"{server.url}/in/a.jsonl",
                "tokenizer": str(tokenizer),
                "storage_options": options,
            }
        ],
        "pack": {"enabled": True, "seq_length": 64},
        "save": {"output_dir": str(tmp_path / "store")},
    }


def assert_nowhere(secret: str, folder: Path, *texts: str) -> None:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 3
    assert not [path for path in files if secret.encode() in path.read_bytes()]
    assert not [text for text in texts if secret in text]


class TestResolving:
    def test_variables_at_any_depth(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LAKE_SECRET", SECRET)
        options = {
            "a": {"env": "LAKE_SECRET"},
            "b": {"c": [{"env": "LAKE_SECRET"}, 1]},
            "d": "plain",
        }
        assert resolve_options(options) == {
            "a": SECRET,
            "b": {"c": [SECRET, 1]},
            "d": "plain",
        }
        assert options["a"] == {"env": "LAKE_SECRET"}

    @pytest.mark.parametrize(
        ("value", "state"), [(None, "is not set"), ("", "is empty")]
    )
    def test_a_missing_variable_is_named(
        self, monkeypatch: pytest.MonkeyPatch, value: str | None, state: str
    ) -> None:
        monkeypatch.delenv("LAKE_SECRET", raising=False)
        if value is not None:
            monkeypatch.setenv("LAKE_SECRET", value)
        with pytest.raises(
            ConfigError,
            match=rf"\{{env: LAKE_SECRET\}} names an environment variable that {state}",
        ):
            listed(
                "https://127.0.0.1:9/a.jsonl",
                storage_options={"headers": {"A": {"env": "LAKE_SECRET"}}},
            )

    def test_a_block_without_a_flow(self) -> None:
        with pytest.raises(
            ConfigError,
            match=r"\{block: lake\} names a Prefect block, which only flows can load",
        ):
            resolve_options({"password": {"block": "lake"}})

    def test_a_block_that_was_handed_over(self) -> None:
        provide_blocks({"lake": SECRET})
        assert resolve_options({"password": {"block": "lake"}}) == {"password": SECRET}

    def test_blocks_of_a_configuration(self) -> None:
        loaded = load_config(
            {
                "name": "set",
                "default_tokenizer": "gpt2",
                "datasets": [
                    {
                        "data_files": "s3://a",
                        "storage_options": {
                            "key": {"block": "one"},
                            "b": {"c": [{"block": "two"}]},
                        },
                    },
                    {
                        "data_files": "s3://b",
                        "storage_options": {"key": {"block": "one"}},
                    },
                ],
            }
        )
        with build_runs.BuildRun(loaded, workers=1) as build_run:
            assert build_run.blocks == ("one", "two")


class TestScrubbing:
    def test_known_secrets_queries_and_passwords_go(self) -> None:
        remember([SECRET])
        text = f"GET https://me:hunter2@host/a.jsonl?sig=abc failed, {SECRET!r} refused (see s3://b/c)"
        assert (
            scrub(text)
            == f"GET https://...@host/a.jsonl?... failed, '{HIDDEN}' refused (see s3://b/c)"
        )

    def test_secrets_of_four_letters_are_hidden_and_shorter_ones_are_words(
        self,
    ) -> None:
        references._KNOWN.clear()
        remember(["off", "x9Kq"])
        assert scrub("off: x9Kq") == f"off: {HIDDEN}"

    def test_literal_credentials_in_options_are_known(self) -> None:
        resolve_options(
            {"secret": "hunter2hunter2", "region": "eu-west-1", "token": "cloud"}
        )
        assert (
            scrub("hunter2hunter2 in the cloud eu-west-1")
            == f"{HIDDEN} in the cloud eu-west-1"
        )

    @given(
        value=st.text("aZ09/+=%&'\"()<>; ~:ü*", min_size=6, max_size=30),
        write=st.sampled_from([quote, quote_plus, partial(quote, safe="")]),
        spell=st.sampled_from(SPELLINGS),
        around=st.sampled_from(
            [
                "{}",
                "see https://host/a?{}.",
                "GET /a?{} HTTP/1.1",
                "URL('http://h/a?x=1&{}')",
            ]
        ),
    )
    def test_a_signed_query_is_known_however_it_is_quoted(
        self,
        value: str,
        write: Callable[[str], str],
        spell: Callable[[str], str],
        around: str,
    ) -> None:
        """A library may have quoted or unquoted it, in full or in part, before it
        was put in a message.
        """
        assume(len(set(value)) > 3)
        references._KNOWN.clear()
        signed = (
            f"X-Amz-Date=20261122T000000Z&X-Amz-Signature={write('begin' + value)}end1"
        )
        remember([signed])
        told = scrub(around.format(spell(signed)))
        assert "begin" not in told and "end1" not in told

    @given(text=st.text("ab?=&%.'\" /:", max_size=60))
    def test_a_text_without_a_secret_is_left_alone(self, text: str) -> None:
        references._KNOWN.clear()
        assert without_credentials(text) == text
        assume("?" not in text)
        assert scrub(text) == text

    @pytest.mark.parametrize(
        "text",
        ["?" * 100_000, "?a=" + "'" * 100_000, "?a" * 50_000, "://?a=b" * 20_000],
    )
    def test_long_messages_take_linear_time(self, text: str) -> None:
        remember([SECRET])
        scrub(text)

    def test_a_server_that_repeats_what_was_asked(
        self, server: HttpServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its words are in the message, where the query is not as it was given."""
        monkeypatch.setenv(
            "LAKE_QUERY",
            "X-Amz-Credential=AKIA%2F2026&X-Amz-Signature=opensesame%2Fcd%27ef%29gh",
        )
        server.repeats = True
        with pytest.raises(SourceError, match="access is denied") as caught:
            listed(
                f"{server.url}/in/a.jsonl",
                storage_options={"query": {"env": "LAKE_QUERY"}},
            )
        assert "HTTP status 403 /in/a.jsonl?...)" in str(caught.value)


class TestBuilds:
    @pytest.mark.parametrize("kind", ["env", "block", "literal", "query"])
    def test_the_secret_reaches_the_server_and_no_file_message_or_stream(
        self,
        kind: str,
        server: HttpServer,
        tmp_path: Path,
        tokenizer_dir: Path,
        monkeypatch: pytest.MonkeyPatch,
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        options: dict[str, Any] = {"headers": {"Authorization": {kind: "LAKE_AUTH"}}}
        if kind == "env":
            monkeypatch.setenv("LAKE_AUTH", SECRET)
        elif kind == "block":
            provide_blocks({"LAKE_AUTH": SECRET})
        elif kind == "literal":
            options["headers"]["Authorization"] = SECRET
        else:
            server.secret = "X-Amz-Signature=opensesame-7d1f0c55"
            monkeypatch.setenv("LAKE_QUERY", server.secret)
            options = {"query": {"a.jsonl": {"env": "LAKE_QUERY"}}}
        events: list[object] = []
        result = build_dataset(
            config(server, tmp_path, tokenizer_dir, options),
            workers=1,
            on_event=events.append,
        )
        assert sum(entry.documents for entry in result.manifest.files) == 300
        assert_nowhere(
            "opensesame", tmp_path, *capfd.readouterr(), repr(events), repr(result)
        )

    def test_a_refused_secret_is_in_no_message(
        self,
        server: HttpServer,
        tmp_path: Path,
        tokenizer_dir: Path,
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        options = {"headers": {"Authorization": "Bearer wrong-opensesame"}}
        with pytest.raises(SourceError, match="access is denied") as caught:
            build_dataset(config(server, tmp_path, tokenizer_dir, options), workers=1)
        told = (
            "".join(capfd.readouterr()) + str(caught.value) + repr(caught.value.details)
        )
        assert "opensesame" not in told

    def test_dumps_hold_references_only(
        self, server: HttpServer, tmp_path: Path
    ) -> None:
        literal = load_config(
            config(
                server,
                tmp_path,
                tmp_path,
                {"headers": {"Authorization": SECRET}, "query": SECRET},
            )
        )
        assert "opensesame" not in literal.model_dump_json() + repr(literal)

    def test_workers_learn_blocks_from_their_pipe_and_scrub_them(self) -> None:
        provide_blocks({"lake": SECRET})
        with WorkerPool(1) as pool:
            environment = Path(f"/proc/{pool.pids()[0]}/environ").read_bytes()
            with pytest.raises(WorkerError, match="unknown job") as caught:
                pool.run(no_job(SECRET))
            assert SECRET.encode() not in environment
            assert SECRET not in str(caught.value)
            provide_blocks({"lake": SECRET, "later": "another-secret"})
            with pytest.raises(WorkerError) as caught:
                pool.run(no_job("another-secret"))
            assert "another-secret" not in str(caught.value)


class TestEngine:
    def test_planning_waits_for_the_blocks(
        self, server: HttpServer, tmp_path: Path, tokenizer_dir: Path
    ) -> None:
        wanted = load_config(
            config(
                server,
                tmp_path,
                tokenizer_dir,
                {"headers": {"Authorization": {"block": "lake"}}},
            )
        )
        with build_runs.BuildRun(wanted, workers=1) as build_run:
            assert build_run.blocks == ("lake",)
            assert not server.log
            build_run.provide({"lake": SECRET})
            assert len(build_run.session().pending) == 1
            build_run.build([0], lambda line, *args: None)
            assert (
                sum(entry.documents for entry in build_run.commit().manifest.files)
                == 300
            )


class TestAllowedInputs:
    ALLOWED = "/data/raw:s3://lake/raw:https://data.example.org:8443/sets:gs://open:hf://datasets/our-org"

    def check(self, files: str, **dataset: Any) -> None:
        request = requests.resolve_request(
            {
                "name": "x",
                "datasets": [
                    {"data_files": files, "name": "s", "tokenizer": "gpt2", **dataset}
                ],
            }
        )
        policy.check_paths(request, {"TOKENLAKE_ALLOWED_INPUTS": self.ALLOWED})

    @pytest.mark.parametrize(
        "files",
        [
            "/data/raw/a.jsonl",
            "s3://lake/raw",
            "s3://lake/raw/**/*.jsonl",
            "s3a://lake/raw/a.jsonl",
            "gs://open/anything/a*.jsonl",
            "https://data.example.org:8443/sets/a.jsonl?page=2",
            "HTTPS://Data.Example.org:8443/sets/a.jsonl",
        ],
    )
    def test_inside(self, files: str) -> None:
        self.check(files)

    @pytest.mark.parametrize(
        "files",
        [
            "s3://lake/rawer/a.jsonl",
            "s3://lake/raw*",
            "s3://lake/ra*/a.jsonl",
            "s3://lake",
            "s3://lake/*",
            "s3://other/raw/a.jsonl",
            "gs://lake/raw/a.jsonl",
            "s3://lake/raw/../private/a.jsonl",
            "https://data.example.org:8443/sets/../a.jsonl",
            "https://data.example.org:8443/sets/%2e%2e/a.jsonl",
            "https://data.example.org:8443/sets/%252e%252e/a.jsonl",
            "https://data.example.org:8443/sets\\..\\a.jsonl",
            "https://data.example.org:8443/sets/..%2fa.jsonl",
            "https://data.example.org/sets/a.jsonl",
            "https://data.example.org:84430/sets/a.jsonl",
            "https://data.example.org:8443.evil.org/sets/a.jsonl",
            "https://evil.org/https://data.example.org:8443/sets/a.jsonl",
            "http://data.example.org:8443/sets/a.jsonl",
            "local:///data/raw/a.jsonl",
            "file:///etc/passwd.txt",
            "memory://data/raw/a.jsonl",
        ],
    )
    def test_outside(self, files: str) -> None:
        outside = (
            r"data_files of 's': .* is outside the places that this worker allows"
            r"|local:// is not an allowed scheme"
        )
        with pytest.raises(ConfigError, match=outside):
            self.check(files)

    def test_datasets_of_the_hub(self) -> None:
        self.check("our-org/set", type="hf")
        with pytest.raises(
            ConfigError, match="is outside the places that this worker allows"
        ):
            self.check("their-org/set", type="hf")

    def test_without_a_limit_everything_is_allowed(self) -> None:
        policy.check_paths(
            requests.resolve_request(
                {
                    "name": "x",
                    "datasets": [
                        {"data_files": "s3://any", "name": "s", "tokenizer": "g"}
                    ],
                }
            ),
            {},
        )
