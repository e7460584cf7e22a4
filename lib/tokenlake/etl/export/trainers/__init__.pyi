"""What others may import from this package, and where each name is defined."""

from tokenlake.etl.export.trainers.layouts import WITHOUT_LOSS_MASK as WITHOUT_LOSS_MASK
from tokenlake.etl.export.trainers.layouts import lacks_eos as lacks_eos
from tokenlake.etl.export.trainers.layouts import layout_of as layout_of
from tokenlake.etl.export.trainers.layouts import require_fit as require_fit
from tokenlake.etl.export.trainers.layouts import require_package as require_package
from tokenlake.etl.export.trainers.token_files import TokenFiles as TokenFiles
from tokenlake.etl.export.trainers.token_files import put_file as put_file
from tokenlake.etl.export.trainers.token_layout import TokenFacts as TokenFacts
from tokenlake.etl.export.trainers.token_layout import TokenLayout as TokenLayout
