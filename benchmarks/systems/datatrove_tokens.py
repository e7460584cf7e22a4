"""datatrove, as its examples/tokenize_c4.py shows it: JsonlReader, DocumentTokenizer,
then the merger.

The local executor in place of the Slurm one, a task per input file, N of them at a
time.
"""

from __future__ import annotations

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer, DocumentTokenizerMerger

from benchmarks.systems.arguments import Arguments, parse


def main(job: Arguments) -> None:
    """Writes `tokenized/` (a file per task, shuffled) and `merged/` (the shuffled
    whole).
    """
    tokenized, merged = str(job.output / "tokenized"), str(job.output / "merged")
    tokenize = LocalPipelineExecutor(
        pipeline=[
            JsonlReader(str(job.input), glob_pattern="*.jsonl"),
            DocumentTokenizer(
                output_folder=tokenized,
                tokenizer_name_or_path=str(job.tokenizer / "tokenizer.json"),
                save_filename="bench_tokenized",
                eos_token=job.eos,
            ),
        ],
        tasks=len(job.files),
        workers=job.workers,
        logging_dir=str(job.output / "logs" / "tokenize"),
    )
    merge = LocalPipelineExecutor(
        pipeline=[
            DocumentTokenizerMerger(
                input_folder=tokenized, output_folder=merged, save_filename="bench"
            )
        ],
        tasks=1,
        logging_dir=str(job.output / "logs" / "merge"),
        depends=tokenize,
    )
    merge.run()


if __name__ == "__main__":
    main(parse())
