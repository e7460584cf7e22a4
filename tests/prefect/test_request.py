"""A run's parameters to a configuration, its name, its groups of units, its log
lines, its limits.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lazily import lazily
from tests.seeds import promise
from tokenlake.config import TokenizerConfig
from tokenlake.errors import ConfigError
from tokenlake.etl import UnitJob, UnitProgress, planner
from tokenlake.runtime.store import Layout

policy: Any = lazily("tokenlake.runs.policy")

validation: Any = lazily("prefect.utilities.schema_tools.validation")
requests: Any = lazily("tokenlake.runs.request")
groups_of_units: Any = lazily("tokenlake.runs.groups")
progress_log: Any = lazily("tokenlake.runs.progress_log")

DATA = ["datasets: [{data_files: a.jsonl, name: one}]", "default_tokenizer: gpt2"]


def test_a_data_module_names_its_data_itself(tmp_path: Path) -> None:
    section = {
        "type": "data_module",
        "dataset": {"name": "org/name"},
        "tokenizer": "gpt2",
    }
    path = tmp_path / "module.yaml"
    path.write_text(json.dumps(section))
    for made in (
        requests.resolve_request(str(path), output="here"),
        requests.resolve_request({"name": "module", **section}, output="here"),
    ):
        assert (made.name, made.datasets[0].data_files, made.save.output_dir) == (
            "module",
            "org/name",
            "here",
        )


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """Stands in for the making of the demo's corpus and tokenizer; lists the folders
    it was asked for.
    """
    asked: list[Path] = []

    def settings(folder: Path, report: object, *, trained: bool) -> dict[str, object]:
        asked.append(folder)
        tokenizer = {"default_tokenizer": "trained"} if trained else {}
        return {"datasets": [{"name": "code", "data_files": "corpus"}], **tokenizer}

    monkeypatch.setattr("tokenlake.runs.request.demo_settings", settings)
    yield asked


def write(folder: Path, *lines: str) -> str:
    path = folder / "mine.yaml"
    path.write_text("\n".join(lines))
    return str(path)


class TestRequest:
    def test_flat_values_come_before_those_of_the_file_and_overrides_before_both(
        self, tmp_path: Path
    ) -> None:
        config = requests.resolve_request(write(tmp_path, *DATA))
        assert (config.name, config.datasets[0].data_files) == ("mine", "a.jsonl")
        config = requests.resolve_request(
            write(tmp_path, *DATA), name="other", overrides=["name=third"]
        )
        assert config.name == "third"
        path = write(tmp_path, *DATA, "save: {output_dir: there}")
        config = requests.resolve_request(
            path, ["b.jsonl", "c.jsonl"], "my/tokenizer", "here", "other"
        )
        assert config.datasets[0].data_files == ("b.jsonl", "c.jsonl")
        assert config.datasets[0].name == "one"
        assert config.default_tokenizer == "my/tokenizer"
        assert config.save.output_dir == "here"
        assert config.name == "other"

    def test_the_fields_of_the_form_are_overrides_and_empty_ones_are_none(
        self, tmp_path: Path
    ) -> None:
        path = write(
            tmp_path, *DATA, "pack: {enabled: true, seq_length: 64, strategy: pool}"
        )
        assert requests.stage_values(0, "", None, {}) == requests.stage_values() == []
        given = requests.stage_values(
            512, "best_fit", "tokenizers", {"train": 0.9, "test": 0.1}
        )
        config = requests.resolve_request(
            path, overrides=[*given, "pack.seq_length=128"]
        )
        assert (config.pack.seq_length, config.pack.strategy) == (128, "best_fit")
        assert config.tokenize.tokenizer_backend == "tokenizers"
        assert config.source.splits == {"train": 0.9, "test": 0.1}

    def test_a_tokenizer_keeps_the_options_beside_it(self, tmp_path: Path) -> None:
        path = write(
            tmp_path,
            DATA[0],
            "tokenize: {default_tokenizer: {name_or_path: a, max_length: 77}}",
        )
        config = requests.resolve_request(path, tokenizer="b")
        chosen = config.tokenize.default_tokenizer
        assert isinstance(chosen, TokenizerConfig)
        assert (chosen.name_or_path, chosen.max_length) == ("b", 77)

    @pytest.mark.parametrize(
        "given", ["llama2-2048", "demo", {"name": "x", "pack": {"enabled": True}}]
    )
    def test_a_mapping_or_a_deployment_by_name_with_data(self, given: Any) -> None:
        config = requests.resolve_request(given, "a.jsonl", "gpt2")
        assert config.name == (given if isinstance(given, str) else "x")
        assert config.pack.enabled and config.datasets[0].name == "data"

    @pytest.mark.parametrize("config", ["llama2-2048", {"name": "mine"}, "demo.yaml"])
    def test_only_the_demo_brings_data(
        self,
        demo: list[Path],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        config: Any,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "demo.yaml").write_text("pack: {enabled: true, seq_length: 64}")
        with pytest.raises(
            ConfigError, match=r"names no data to read; give --param data_files="
        ):
            requests.resolve_request(config)
        assert demo == []

    @pytest.mark.parametrize("config", [None, "", "demo", "demo.yaml"])
    def test_nothing_at_all_is_the_demo(
        self, demo: list[Path], config: str | None
    ) -> None:
        path = str(requests.DEPLOYMENTS / "demo.yaml")
        found = requests.resolve_request(path if config == "demo.yaml" else config)
        assert found.name == "demo"
        assert found.default_tokenizer == "trained"
        assert found.datasets[0].data_files == "corpus"

    @pytest.mark.parametrize(
        "given",
        [{"tokenizer": "gpt2"}, {"overrides": ["tokenize.default_tokenizer=gpt2"]}],
        ids=str,
    )
    def test_the_demo_trains_no_tokenizer_where_one_is_given(
        self, demo: list[Path], given: Any
    ) -> None:
        found = requests.resolve_request("demo", **given)
        assert "gpt2" in (found.default_tokenizer, found.tokenize.default_tokenizer)
        assert "trained" not in (
            found.default_tokenizer,
            found.tokenize.default_tokenizer,
        )

    def test_data_in_overrides_is_data(self, demo: list[Path]) -> None:
        config = requests.resolve_request(
            "llama2-2048", overrides=["datasets=[{data_files: a.jsonl}]"]
        )
        assert config.datasets[0].data_files == "a.jsonl"
        assert demo == []

    @pytest.mark.parametrize(
        ("config", "told"),
        [
            (
                {"datasets": [{"data_files": "a"}, {"data_files": "b"}]},
                r"2 datasets.*datasets\.0\.data_files",
            ),
            ("lama2-2048", r"did you mean 'llama2-2048'.*demo, llama2-2048"),
            ("/nowhere/none.yaml", "no such file"),
        ],
    )
    def test_what_cannot_be_meant_is_refused(self, config: Any, told: str) -> None:
        with pytest.raises(ConfigError, match=told):
            requests.resolve_request(config, "c.jsonl")

    @pytest.mark.parametrize(
        ("config", "overrides"),
        [
            ({"name": "x", "save": {"hub_token": "hf_secret"}}, []),
            ({"name": "x"}, ["save.hub_token=hf_secret"]),
            (
                {
                    "name": "x",
                    "save": {
                        "output_dir": "s3://a",
                        "storage_options": {"secret": "hf_secret"},
                    },
                },
                [],
            ),
            (
                {
                    "name": "x",
                    "datasets": [
                        {"data_files": "a", "storage_options": {"secret": "hf_secret"}}
                    ],
                },
                [],
            ),
        ],
    )
    def test_secrets_must_be_references(
        self, config: dict[str, object], overrides: list[str]
    ) -> None:
        taken = requests.resolve_request(
            {"name": "x", "save": {"hub_token": {"env": "HF_TOKEN"}}}, "a.jsonl"
        )
        assert taken.model_dump(mode="json")["save"]["hub_token"] == {"env": "HF_TOKEN"}
        files = None if "datasets" in config else "a.jsonl"
        with pytest.raises(ConfigError, match="literal secret") as caught:
            requests.resolve_request(config, files, overrides=overrides)
        assert "hf_secret" not in str(caught.value)

    @promise(240)
    @pytest.mark.parametrize("word", ["anon", "cloud", "google_default"])
    def test_where_gcsfs_finds_a_token_is_no_secret(
        self, word: str, tmp_path: Path
    ) -> None:
        options = {"storage_options": {"token": word}}
        asked = {
            "datasets": [{"data_files": "gs://a", **options}],
            "save": {"output_dir": "gs://b", **options},
        }
        path = write(
            tmp_path, *(f"{key}: {json.dumps(value)}" for key, value in asked.items())
        )
        for config in (asked, path):
            found = requests.resolve_request(config, name="x").model_dump(mode="json")
            assert (
                found["datasets"][0]["storage_options"]
                == found["save"]["storage_options"]
                == {"token": word}
            )
        for key in ("secret", "hf_token"):
            with pytest.raises(ConfigError, match="literal secret"):
                requests.resolve_request(
                    asked, overrides=[f"save.storage_options={{{key}: {word}}}"]
                )


@pytest.mark.parametrize("of", ["tokenize", "mix"])
def test_the_form_offers_what_there_is_to_choose_and_takes_it_empty(of: str) -> None:
    schema = getattr(lazily(f"tokenlake_flows.{of}"), of).parameters.model_dump()
    fields = schema["properties"]
    assert fields["config"]["anyOf"][0]["enum"] == [
        "",
        *requests.known_configurations(),
    ]
    assert fields["strategy"]["enum"] == ["", "greedy", "pool", "first_fit", "best_fit"]
    assert {"", "auto", "tokenizers"} <= set(fields["tokenizer_backend"]["enum"])
    assert fields["executor"]["enum"] == ["", "local", "store", "ray", "dask"]
    empty = {name: field["default"] for name, field in fields.items()}
    validation.validate(
        empty, schema, raise_on_error=True, allow_none_with_default=True
    )
    with pytest.raises(validation.ValidationError, match="strategy"):
        validation.validate({"strategy": "bestfit"}, schema, raise_on_error=True)


@pytest.mark.parametrize(
    ("config", "name", "called", "mixed"),
    [
        ("llama2-2048", None, "llama2-2048", "llama2-2048"),
        ("some/folder/web.yaml", "", "web", "web"),
        ("llama2-2048", "mine", "mine", "mine"),
        ({"name": "inner"}, None, "inner", "inner"),
        ({}, None, "tokenize", "mix"),
        ("", None, "demo", "pretrain-2048"),
        (None, None, "demo", "pretrain-2048"),
    ],
)
def test_a_run_is_called_after_its_dataset(
    config: Any, name: str | None, called: str, mixed: str
) -> None:
    parameters = {"config": config, "name": name}
    assert requests.requested_name(requests.DEFAULT, parameters) == called
    assert requests.requested_name(requests.DEFAULT_MIXTURE, parameters) == mixed


class TestGroups:
    @given(
        units=st.lists(st.integers(0, 10**6), max_size=700), most=st.integers(1, 300)
    )
    def test_groups_are_the_units_in_order_and_even(
        self, units: list[int], most: int
    ) -> None:
        groups = groups_of_units.group_units(units, most)
        assert [unit for group in groups for unit in group] == units
        assert len(groups) == min(len(units), most)
        sizes = {len(group) for group in groups}
        assert not sizes or max(sizes) - min(sizes) <= 1

    def test_names_hold_the_digits_of_the_files(self) -> None:
        assert groups_of_units.group_name((17,)) == "unit 00017"
        assert groups_of_units.group_name((17, 18, 19)) == "units 00017-00019"


class TestProgressLog:
    def test_a_line_every_ten_seconds_and_one_at_the_end(self) -> None:
        now = [0.0]
        lines: list[str] = []
        progress = progress_log.ProgressLog(
            "unit 00003", 100_000_000, lines.append, clock=lambda: now[0]
        )
        for _ in range(25):
            now[0] += 1.0
            progress.add(UnitProgress(3, "code", 2_000_000, 10, 500))
        progress.done(250, 12_500, {"load": 1.0})
        assert lines == [
            "unit 00003: 20% of 95.4 MiB, 2.00 MB/s, 100 documents, 5.00 k tokens",
            "unit 00003: 40% of 95.4 MiB, 2.00 MB/s, 200 documents, 10.0 k tokens",
            "unit 00003: 95.4 MiB in 25.0 s (load 1.0 s), 4.00 MB/s, 250 documents, 12.5 k tokens",
        ]


class TestPolicy:
    def check(
        self, files: str, store: str, inputs: str | None, outputs: str | None
    ) -> None:
        config = requests.resolve_request({"name": "x"}, files, "gpt2", store)
        given = {
            "TOKENLAKE_ALLOWED_INPUTS": inputs,
            "TOKENLAKE_ALLOWED_OUTPUTS": outputs,
        }
        policy.check_paths(
            config, {key: value for key, value in given.items() if value is not None}
        )

    def test_without_limits_everything_is_allowed_and_with_them_what_is_inside(
        self, tmp_path: Path
    ) -> None:
        self.check("/anywhere/*.jsonl", "/else", None, None)
        self.check(
            f"{tmp_path}/a/**/*.jsonl",
            f"{tmp_path}/out",
            f"/x:{tmp_path}/a",
            str(tmp_path),
        )

    @pytest.mark.parametrize(
        "files", ["/etc/*.conf", "a/../../x.jsonl", "allowed*/x.jsonl", "link/x.jsonl"]
    )
    def test_inputs_outside_are_refused(self, files: str, tmp_path: Path) -> None:
        (tmp_path / "allowed").mkdir()
        (tmp_path / "link").symlink_to("/etc")
        path = files if files.startswith("/") else f"{tmp_path}/{files}"
        with pytest.raises(
            ConfigError, match=r"data_files of 'data'.*TOKENLAKE_ALLOWED_INPUTS"
        ):
            self.check(path, "out", f"{tmp_path}/allowed", None)

    @pytest.mark.parametrize(
        "store", ["s3://lake/tokens", "s3a://lake/tokens/new", "file:///data/out/x"]
    )
    def test_stores_inside_are_allowed(self, store: str) -> None:
        self.check("a.jsonl", store, None, "s3://lake/tokens:/data/out")

    @pytest.mark.parametrize(
        "store",
        [
            *(
                "s3://lake",
                "s3://lake/tokens2",
                "s3://other/tokens",
                "s3://lake/tokens/../x",
                "gs://lake/tokens",
            ),
            *(
                "file:///data/out/%2e%2e/x",
                "FILE:///data/out/%2e%2e/x",
                "~/x",
                "/data/out/../x",
            ),
        ],
    )
    def test_stores_outside_are_refused(
        self, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        allowed = f"s3://lake/tokens:/data/out:{tmp_path}"
        with pytest.raises(ConfigError, match=r"the store.*TOKENLAKE_ALLOWED_OUTPUTS"):
            self.check("a.jsonl", store, None, allowed)
        with pytest.raises(ConfigError, match=r"the store.*TOKENLAKE_ALLOWED_OUTPUTS"):
            self.check("a.jsonl", f"{tmp_path}x", None, str(tmp_path))

    def test_an_empty_list_allows_nothing(self) -> None:
        with pytest.raises(ConfigError, match="nothing"):
            self.check("a.jsonl", "out", "", None)


def test_a_job_of_a_plan_reads_and_runs_only_what_the_worker_of_a_pool_allows(
    tokenizer_dir: Path, tmp_path: Path
) -> None:
    """Whoever writes a store may write a plan into it."""
    (tmp_path / "a.jsonl").write_text('{"text": "a lake"}\n')
    dataset = {
        "name": "s",
        "data_files": str(tmp_path / "a.jsonl"),
        "tokenizer": str(tokenizer_dir),
    }
    plan = planner.plan(
        {
            "name": "x",
            "datasets": [dataset],
            "save": {"output_dir": str(tmp_path / "out")},
        }
    )
    job = plan.job(plan.units[0], plan.store, Layout("x", 1), "tokenizers")
    assert isinstance(job, UnitJob)
    inside = {
        "TOKENLAKE_ALLOWED_INPUTS": str(tmp_path),
        "TOKENLAKE_ALLOWED_CALLABLES": "ours:*",
    }
    policy.check_job(job, inside)
    options = {"key": {"env": "HOME"}}
    keyed = replace(job, source=replace(job.source, storage_options=options))
    texts = replace(job.source.texts, transforms=({"filter": "theirs:f"},))
    for wrong, environment, message in (
        (
            job,
            {"TOKENLAKE_ALLOWED_INPUTS": "/elsewhere"},
            r"an input of 's'.*outside the places that this worker allows",
        ),
        (keyed, inside, r"\{env: HOME\} is not allowed on this worker"),
        (
            replace(job, source=replace(job.source, texts=texts)),
            inside,
            r"the function 'theirs:f'",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            policy.check_job(wrong, environment)
