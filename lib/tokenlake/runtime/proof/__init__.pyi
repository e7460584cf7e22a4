"""What others may import from this package, and where each name is defined."""

from tokenlake.runtime.proof.delivery import Delivery as Delivery
from tokenlake.runtime.proof.delivery import deliveries_of as deliveries_of
from tokenlake.runtime.proof.delivery import steps_of_rows as steps_of_rows
from tokenlake.runtime.proof.overlap import EvaluationSet as EvaluationSet
from tokenlake.runtime.proof.rows import Takedown as Takedown
from tokenlake.runtime.proof.signature import private_key as private_key
from tokenlake.runtime.proof.signature import public_key as public_key
from tokenlake.runtime.proof.signature import verified as verified
from tokenlake.runtime.proof.statement import check_statement as check_statement
from tokenlake.runtime.proof.statement import prove_state as prove_state
