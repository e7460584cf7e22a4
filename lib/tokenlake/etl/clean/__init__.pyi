"""What others may import from this package, and where each name is defined."""

from tokenlake.etl.clean.clean_result import CleanResult as CleanResult
from tokenlake.etl.clean.cleaning import Cleaning as Cleaning
from tokenlake.etl.clean.cleaning import clean_dataset as clean_dataset
from tokenlake.etl.clean.cleaning import output_of as output_of
from tokenlake.etl.clean.compiled import compiled_loops as compiled_loops
from tokenlake.etl.clean.evaluation_ngrams import EvaluationNgrams as EvaluationNgrams
from tokenlake.etl.clean.evaluation_ngrams import ngram_hashes as ngram_hashes
from tokenlake.etl.clean.signatures import Signer as Signer
from tokenlake.etl.clean.words import WordBuffer as WordBuffer
from tokenlake.etl.clean.words import exact_hashes as exact_hashes
from tokenlake.etl.clean.words import words_of as words_of
