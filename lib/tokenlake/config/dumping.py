"""A configuration as canonical YAML: every key in the order of the models, defaults too, no secrets."""

from __future__ import annotations

import yaml

from tokenlake.config.pipeline import PipelineConfig


def dump_yaml(config: PipelineConfig) -> str:
    """Return YAML that :func:`tokenlake.config.load_config` reads back to an equal configuration.

    A literal secret becomes ``**********``, which is refused on reading: name where it is kept instead.
    A callback function becomes its ``module:name``.
    """
    return yaml.safe_dump(
        config.model_dump(mode="json"),
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=False,
        width=110,
    )
