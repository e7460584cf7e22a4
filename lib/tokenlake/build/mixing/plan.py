"""From stored versions to a plan: which rows of which parents come where, in which units, and what to expect.

Planning reads manifests and the tokenizer of the parents, and no shard; it writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final, final

from tokenlake.build.events import Listed, Watcher, ignore
from tokenlake.build.mixing.ends import rows_of
from tokenlake.build.mixing.fitting import (
    level_of,
    notes_on_columns,
    require_one_tokenizer,
    require_unpadded,
    rows_out,
)
from tokenlake.build.mixing.forecast import MixForecast, forecast_of, notes_on
from tokenlake.build.mixing.identity import UnitIdentity, content_identity, order_identity, rows_identity
from tokenlake.build.mixing.job import Level, ParentVersion, RowsOut
from tokenlake.build.mixing.lanes import choose_lanes, choose_unit_rows
from tokenlake.build.mixing.parents import FoundParent, find_parents, joined_inputs, require_split
from tokenlake.build.mixing.repack import plan_repack, splits_left
from tokenlake.build.mixing.spec import MixtureSpec
from tokenlake.build.mixing.tokenizerfiles import read_tokenizer
from tokenlake.build.mixing.units import MixUnit
from tokenlake.catalog import Catalog
from tokenlake.config.resolved_mix import ResolvedMix, ResolvedMixture
from tokenlake.errors import ConfigError
from tokenlake.fingerprint import fingerprint
from tokenlake.manifest import MIXED, InputFileEntry
from tokenlake.manifest.mixturelaw import mixture_of, outcomes
from tokenlake.mixing import row_weights
from tokenlake.report import numbers
from tokenlake.storage import Store, open_store
from tokenlake.storage.layout import MAX_UNIT
from tokenlake.tokenizers import TokenizerFiles

__all__ = ["MixPlan", "MixUnit", "plan_mix"]
