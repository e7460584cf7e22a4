"""What a mixture of datasets is described by."""

from tokenlake import BaseDatasetInform as BaseDatasetInform
from tokenlake import DatasetLoadError as DatasetLoadError
from tokenlake import DatasetMixture as DatasetMixture
from tokenlake import DatasetType as DatasetType
from tokenlake import TextDatasetInform as TextDatasetInform
