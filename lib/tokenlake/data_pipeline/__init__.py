"""A data module in one YAML file, whose batches are tensors of PyTorch.

::

    from tokenlake.data_pipeline import DataPipeline

    pipeline = DataPipeline.from_config("pipeline_config.yaml").unwrap()
    for batch in pipeline.get_dataloader("train", shuffle=True).unwrap():
        batch["input_ids"]  # torch.int64 (batch_size, max_length)

It is an interface over the rest of the library: rows come from its sources, prompts
from its prompt engine, and `tokenlake run` builds a version of the same file. Names are
loaded when they are first used. A name that needs PyTorch says so if it is missing.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl,torch")  # pyright: ignore[reportUnsupportedDunderAll]
