"""Names under the paths that the seeds import them from, and what those without a
meaning say.
"""

from __future__ import annotations

import importlib
import threading

import pytest

import tokenlake as tl
from tests.rowwise.sharded_support import Plain
from tests.seeds import promise
from tokenlake import distributed, utils
from tokenlake.config import UNSUPPORTED_OPTIONS
from tokenlake.errors import ConfigError, NotAvailableError

MODULES: dict[str, str] = {
    "core.config": """
        CacheStageConfig DatasetConfig LoadStageConfig MixStageConfig ObservabilityConfig
        PackStageConfig PipelineConfig RayConfig SaveStageConfig SourceStageConfig TokenizerConfig
        TokenizeStageConfig WeightSchedulePoint
    """,
    "core.protocols": """
        AsyncDataset BaseStage PipelineContext ResumeState ShardedDataSource ShardInfo
    """,
    "core.types": """
        BaseDatasetInform DatasetLoadError DatasetMixture DatasetType TextDatasetInform
    """,
    "execution": """
        ArrowWriter AsyncDataLoader JsonlWriter LoadStage ParquetWriter Pipeline PrefetchIterator
        SaveStage ShardingSpec WriteStats batch_iterator build_dataset collate_batch
        create_data_iterator create_pipeline create_writer preshard_batch pretokenize save_dataset
        save_iterator tokenize_and_save
    """,
    "transforms": """
        AddField BCOPreprocessTransform ChainedTransform ChatTemplateTransform CombineFields
        ConvertInputOutputToChatML ConvertToChatML CPOPreprocessTransform DPOPreprocessTransform
        DropFields ExpandTransform ExtractField FilterByField FilterNonEmpty FilterTransform
        FirstFitPacker GreedyPacker GRPOPreprocessTransform KTOPreprocessTransform LimitedShardedSource
        MapField MapTransform MaybeApplyChatTemplate MixedShardedSource MixStage ORPOPreprocessTransform
        PackedSequence PackedShardedSource PackStage PoolPacker RenameFields RewardPreprocessTransform
        SelectFields SFTPreprocessTransform TokenizedShardedSource TokenizerManager TokenizeStage
        Transform TransformedShardedSource WeightScheduler batched_tokenize_iterator
        block_mixture_interleave compute_tokenizer_hash pack_constant_length pack_pre_tokenized
        tokenize_dataset_config
    """,
}
"""Path to the names that the seeds import from there."""


@promise(286)
@pytest.mark.parametrize("module", MODULES)
def test_a_module_of_names_holds_the_public_ones(module: str):
    there = importlib.import_module(f"tokenlake.{module}")
    for name in MODULES[module].split():
        assert getattr(there, name) is getattr(tl, name)
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        there.Nonsense  # noqa: B018


@promise(286)
def test_paths_under_the_names_of_the_seeds(tmp_path):
    (tmp_path / "a").mkdir()
    for path in ("x.jsonl", "a/y.jsonl", "a/z.parquet"):
        (tmp_path / path).write_text("{}")
    found = utils.glob_files(f"{tmp_path}/**/*.jsonl")
    assert found == [str(tmp_path / "a/y.jsonl"), str(tmp_path / "x.jsonl")]
    assert utils.glob_files(f"{tmp_path}/**/*.jsonl", recursive=False) == [
        str(tmp_path / "a/y.jsonl")
    ]
    assert [
        utils.infer_builder_from_ext(path) for path in ("x.jsonl", "a.csv", "z")
    ] == ["json", "csv", None]


def test_shards_are_worked_on_side_by_side_and_come_in_order():
    source = Plain({name: [{"n": n} for n in range(3)] for name in "abcd"})
    both = threading.Barrier(2, timeout=120)

    def total(rows: list[dict[str, int]]) -> list[dict[str, int]]:
        both.wait()
        return [{"sum": sum(row["n"] for row in rows)}, {"rows": len(rows)}]

    assert (
        list(distributed.parallel_process_shards(source, total, 2))
        == [{"sum": 3}, {"rows": 3}] * 4
    )
    with pytest.raises(ConfigError, match="num_workers: got 0"):
        distributed.parallel_process_shards(source, total, 0)


@pytest.mark.parametrize("name", ["RayPreprocessor", "tokenize_with_ray"])
def test_what_needs_ray_says_what_does_the_job(name: str):
    with pytest.raises(
        NotAvailableError,
        match=rf"{name} is not available.*build_dataset\(config, executor='ray'\)",
    ):
        getattr(distributed, name)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        distributed.nonsense  # noqa: B018


@pytest.mark.parametrize(
    "option", [{"enabled": True}, {"use_gpu": True}, {"object_store_memory": "4GB"}]
)
def test_options_of_ray_act_in_builds_and_are_refused_for_rows(
    option: dict[str, object],
):
    config = tl.PipelineConfig(
        datasets=[{"data_files": "x.jsonl"}], ray=tl.RayConfig(num_workers=2, **option)
    )
    name = next(iter(option))
    with pytest.raises(
        NotAvailableError, match=rf"ray\.{name}: .*rows are processed in this process"
    ):
        tl.Pipeline.from_config(config).source()
    assert [
        option.build for option in UNSUPPORTED_OPTIONS if option.key == f"ray.{name}"
    ] == [""]
    assert tl.RayConfig(object_store_memory="4GB").object_store_memory == 4 << 30


@promise(284)
def test_a_stage_acts_by_what_it_is_made_with():
    source = Plain({"a": [{"input_ids": [5, 6, 7]}]})
    config = tl.PipelineConfig(
        datasets=[{"data_files": "x.jsonl", "name": "a"}], pack={"seq_length": 99}
    )
    context = tl.PipelineContext(config)
    packed = tl.PackStage({"seq_length": 4, "eos_token_id": 1}).process(
        {"a": source}, context
    )
    assert [row["input_ids"].tolist() for row in packed["a"]] == [[5, 6, 7, 1]]
    (batch,) = tl.LoadStage(tl.LoadStageConfig(batch_size=1)).process(packed, context)[
        "a"
    ]
    assert batch["input_ids"].tolist() == [[5, 6, 7, 1]]
    assert (context.config.pack.seq_length, context.config.load.batch_size) == (4, 1)
    mixed = tl.MixStage({"stop_strategy": "all_exhausted"}).process(
        {"a": source, "b": source}, context
    )
    assert len(list(mixed["mixed"])) == 2
    with pytest.raises(ConfigError, match="pack: got a int, must be a PackStageConfig"):
        tl.PackStage(3).process({"a": source}, context)


@promise(217)
def test_a_schedule_names_its_datasets():
    scheduler = tl.WeightScheduler([{"step": 0, "weights": {"b": 0.5, "a": 0.5}}])
    assert scheduler.dataset_names == ["b", "a"]
