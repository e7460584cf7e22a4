"""datatrove, as in its examples/tokenize_c4.py.

The steps are JsonlReader, DocumentTokenizer and the merger. The local executor replaces
that of Slurm. It runs a task per input file, as many at a time as there are workers.
"""

from __future__ import annotations

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer, DocumentTokenizerMerger

from benchmarks.systems.arguments import Arguments, parse


def main(arguments: Arguments) -> None:
    """Write `tokenized/`, a shuffled file per task, and `merged/`, all of them."""
    tokenized = str(arguments.output / "tokenized")
    logs = arguments.output / "logs"
    tokenize = LocalPipelineExecutor(
        pipeline=[
            JsonlReader(str(arguments.input), glob_pattern="*.jsonl"),
            DocumentTokenizer(
                output_folder=tokenized,
                tokenizer_name_or_path=str(arguments.tokenizer / "tokenizer.json"),
                save_filename="bench_tokenized",
                eos_token=arguments.eos,
            ),
        ],
        tasks=len(arguments.files),
        workers=arguments.workers,
        logging_dir=str(logs / "tokenize"),
    )
    merge = LocalPipelineExecutor(
        pipeline=[
            DocumentTokenizerMerger(
                input_folder=tokenized,
                output_folder=str(arguments.output / "merged"),
                save_filename="bench",
            )
        ],
        tasks=1,
        logging_dir=str(logs / "merge"),
        depends=tokenize,  # the merger runs the tokenizer first
    )
    merge.run()


if __name__ == "__main__":
    main(parse())
