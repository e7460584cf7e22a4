"""The second system of the seeds: a data module in one YAML file, and batches for
PyTorch as results.

::

    from tokenlake.data_pipeline import DataPipeline

    pipeline = DataPipeline.from_config("pipeline_config.yaml").unwrap()
    for batch in pipeline.get_dataloader("train", shuffle=True).unwrap():
        batch["input_ids"]  # torch.int64 (batch_size, max_length)

A face over the rest of the library: rows come from its sources, prompts from its prompt
engine, and `tokenlake run` builds a version of the same file. Names are loaded when
they are first used; those that need PyTorch say so.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl,torch")  # pyright: ignore[reportUnsupportedDunderAll]
