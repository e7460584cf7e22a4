"""What others may import from this package, and where each name is defined."""

from tokenlake.etl.unit.decoded_rows import with_text as with_text
from tokenlake.etl.unit.documents import Recipe as Recipe
from tokenlake.etl.unit.encoding import DocumentEncoder as DocumentEncoder
from tokenlake.etl.unit.finish import Finish as Finish
from tokenlake.etl.unit.fitted import Fitted as Fitted
from tokenlake.etl.unit.infilling import Infilling as Infilling
from tokenlake.etl.unit.infilling import Stretches as Stretches
from tokenlake.etl.unit.kept_fields import Keeper as Keeper
from tokenlake.etl.unit.length_policy import Lengths as Lengths
from tokenlake.etl.unit.opened_parents import OpenedParents as OpenedParents
from tokenlake.etl.unit.parts import PartWriter as PartWriter
from tokenlake.etl.unit.quarantine import QuarantineWriter as QuarantineWriter
from tokenlake.etl.unit.row_steps import mix_steps as mix_steps
from tokenlake.etl.unit.rows_file import Padding as Padding
from tokenlake.etl.unit.rows_file import RowGroups as RowGroups
from tokenlake.etl.unit.source_shares import check_written as check_written
from tokenlake.etl.unit.splits import held_out_draws as held_out_draws
from tokenlake.etl.unit.splits import split_indices as split_indices
from tokenlake.etl.unit.text import TextBuild as TextBuild
from tokenlake.etl.unit.text_documents import TextDocuments as TextDocuments
