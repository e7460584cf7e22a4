"""Parts that commands share: options, the call by arguments, help, and printing.

Results go to stdout as tables or JSON, notes to stderr.
"""

from __future__ import annotations

import inspect
import json
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias, final

from cyclopts import (
    App,
    CycloptsError,
    Group,
    MissingArgumentError,
    Parameter,
    UnknownOptionError,
    UnusedCliTokensError,
    validators,
)
from cyclopts.help import DescriptionRenderer, HelpPanel
from rich.console import Console, ConsoleOptions
from rich.live import Live
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from tokenlake._version import __version__
from tokenlake.base import numbers
from tokenlake.base.markup import printable, printable_json
from tokenlake.cli import ABOUT, CODES, COMMANDS
from tokenlake.cli.streams import encodable_json
from tokenlake.cli.suggestions import advice_on_option, advice_on_words
from tokenlake.config.former_names import renaming_note
from tokenlake.config.overrides import store_overrides
from tokenlake.errors import IntegrityError
from tokenlake.etl.reports.terminal import stderr, stdout
from tokenlake.runtime.store.address import open_store
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.layout import Layout
from tokenlake.runtime.store.schemes import default_store, is_local

if TYPE_CHECKING:
    from cyclopts.completion import CompletionContext

# Options that many commands have, with their help.
Config: TypeAlias = Annotated[str, Parameter(help="A YAML pipeline configuration.")]


def names(context: CompletionContext) -> list[str]:
    """Return the datasets of the store on the command line, for a shell that completes.

    Only a store of this machine is listed: a shell should not wait for a bucket.
    """
    store = context["store"].raw
    if not is_local(store or default_store()):
        return []
    return catalog_of(store).datasets()


Name: TypeAlias = Annotated[
    str,
    Parameter(
        help="A dataset, or one version of it: NAME, NAME@v3 or NAME@TAG.",
        completer=names,
    ),
]
_STORE = "The store: a path, s3:// or gs://. Default: TOKENLAKE_STORE, otherwise ./artifacts."
StoreUrl: TypeAlias = Annotated[
    str | None, Parameter(name="--store", metavar="URL", help=_STORE)
]
AsJson: TypeAlias = Annotated[
    bool, Parameter(name="--json", help="Print JSON with stable keys.")
]
_SET = "Change one setting, e.g. pack.seq_length=1024 or datasets.code.num_rows=5. Repeatable."
Overrides: TypeAlias = Annotated[
    tuple[str, ...], Parameter(name=["--set", "-s"], metavar="KEY=VALUE", help=_SET)
]
_WORKERS = "Number of workers. Default: the number of processors, as far as memory allows (768 MiB each)."
Workers: TypeAlias = Annotated[
    int | None,
    Parameter(metavar="N", help=_WORKERS, validator=validators.Number(gte=1)),
]

ExecutorChoice = Literal["local", "store", "ray", "dask"]
Executor: TypeAlias = ExecutorChoice | None
FormerExecutor: TypeAlias = Annotated[
    ExecutorChoice | None, Parameter(name="--engine", show=False)
]
"""Former name of the option `--executor`, for one release."""


def executor_of(executor: Executor, engine: Executor) -> Executor:
    """Return the executor of a command, with a note if its option has its former name.

    Args:
        executor: Value of `--executor`.
        engine: Value of `--engine`, the former name.
    """
    if engine is not None:
        note(renaming_note("--engine", "--executor"))
    return executor or engine


def note_unreadable(layout: Layout, error: IntegrityError) -> None:
    """Say on stderr which version is left out, and which file of it is damaged."""
    note(
        f"{layout.dataset} v{layout.version} cannot be read (the other versions can): {printable(str(error))}"
    )


def catalog_of(store: str | None) -> Catalog:
    """Return the catalog of a store, that of ``--store`` or the default one."""
    return Catalog(open_store(store or default_store()))


def with_store(overrides: tuple[str, ...], store: str | None) -> list[str]:
    """Return overrides with ``--store`` as the last one.

    The store of a run is the option ``save.output_dir``.
    """
    if not store:
        return list(overrides)
    return [*overrides, *store_overrides(store)]


@final
class Data:
    """Standard output for data, which are CSV or YAML.

    Files and pipes get it unchanged. On a terminal control characters are made visible,
    so that data cannot drive it.
    """

    def write(self, text: str) -> int:
        if sys.stdout.isatty():
            text = printable(text)
        return sys.stdout.write(text)


def print_json(value: object) -> None:
    """Print a value as indented JSON on stdout.

    Types that JSON lacks, such as dates and decimals, become text.
    """
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    sys.stdout.write(encodable_json(printable_json(text), sys.stdout) + "\n")


def emit(value: object, json: bool, show: Callable[[], object]) -> None:
    """Print a value as JSON for programs, or by a function for people.

    Args:
        value: Value to print as JSON.
        json: True for JSON.
        show: Function that prints it for people.
    """
    if json:
        print_json(value)
    else:
        show()


def note(message: str) -> None:
    """Print one line on stderr."""
    stderr().print(Text(message))


_LINE_EVERY: Final = 10.0  # seconds between lines without a terminal
_QUIET: Final = 0.5  # seconds before a counter shows itself: short work needs none


@final
class Counter:
    """Number of processed bytes, of a total that may become known later; thread-safe.

    Args:
        work: Name of the work, such as ``verifying``.
        lines: Console on which a line is printed every ten seconds; None if the caller
            asks for :meth:`line`.

    Attributes:
        done: Number of bytes so far.
        total: Number of bytes in all; 0 while it is not known.
    """

    def __init__(self, work: str, lines: Console | None = None) -> None:
        self._work = work
        self._console = lines
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._next_line = self._began + _LINE_EVERY
        self.done = 0
        self.total = 0

    def add(self, more: int) -> None:
        """Count more bytes."""
        with self._lock:
            self.done += more
            self._print_line()

    def set(self, done: int, total: int) -> None:
        """Replace the number of bytes so far, and in all."""
        with self._lock:
            self.done = done
            self.total = total
            self._print_line()

    def line(self) -> str:
        """Return ``verifying: 1.20 GiB of 3.41 GiB, 912 MB/s``.

        The text is empty during the first half second.
        """
        seconds = time.monotonic() - self._began
        if seconds < _QUIET:
            return ""
        processed = numbers.size(self.done)
        if self.total:
            processed += f" of {numbers.size(self.total)}"
        return f"{self._work}: {processed}, {numbers.rate(self.done, seconds)}"

    def _print_line(self) -> None:
        """Print the line, if it is time."""
        if self._console is None:
            return
        now = time.monotonic()
        if now >= self._next_line:
            self._next_line = now + _LINE_EVERY
            self._console.print(Text(self.line()))


@contextmanager
def counting(work: str) -> Generator[Counter]:
    """Show the number of processed bytes of long work.

    On a terminal it is shown continuously, elsewhere by lines.

    Args:
        work: Name of the work, such as ``verifying``.
    """
    console = stderr()
    if not console.is_terminal:
        yield Counter(work, console)
        return
    counter = Counter(work)
    with Live(
        console=console,
        get_renderable=lambda: Text(counter.line(), style="dim"),
        transient=True,
    ):
        yield counter


_LONG: Final = 1.0  # seconds after which work gets a line without a terminal


@contextmanager
def working(work: str) -> Generator[None]:
    """Show that work of unknown amount goes on.

    On a terminal its seconds are shown, elsewhere a line after a second.

    Args:
        work: Name of the work, such as ``writing the report``.
    """
    console = stderr()
    began = time.monotonic()
    # The timer prints the line, unless the work ends before.
    if not console.is_terminal:
        line = threading.Timer(_LONG, console.print, [Text(work)])
        line.daemon = True
        line.start()
        try:
            yield
        finally:
            line.cancel()
        return

    # On a terminal the seconds are redrawn until the work ends.
    def seconds_so_far() -> Text:
        seconds = time.monotonic() - began
        if seconds < _QUIET:
            return Text("")
        return Text(f"{work}, {seconds:.0f} s", style="dim")

    with Live(console=console, get_renderable=seconds_so_far, transient=True):
        yield


@final
class PlainColumns:
    """A cyclopts help formatter: names in one column, texts in another one.

    Cyclopts calls it once for each group of commands or parameters.
    """

    def __call__(
        self, console: Console, options: ConsoleOptions, panel: HelpPanel
    ) -> None:
        """Print one group, e.g. all options of a command."""
        if not panel.entries:
            return
        console.print(Text(f"{panel.title}:", style="bold"))
        # Without boxes, so that the help can be copied and searched.
        columns = Grid(
            box=None, show_header=False, pad_edge=False, padding=(0, 3, 0, 0)
        )
        columns.add_column(no_wrap=True, style="cyan")
        columns.add_column()
        describe = DescriptionRenderer()
        for entry in panel.entries:
            # `--set, -s KEY=VALUE`; a positional parameter by its name alone, not as an
            # option too.
            labels = entry.positional_label
            if not labels:
                labels = ", ".join(entry.display_labels_with_metavar)
            columns.add_row(labels, describe(entry))
        console.print(Padding(columns, (0, 0, 1, 2), expand=False))

    def render_usage(
        self, console: Console, options: ConsoleOptions, usage: object
    ) -> None:
        """Print the line that says how the command is called."""
        if usage:
            console.print(Text("Usage: ", style="bold") + Text(str(usage)))


_OPTIONS = Group("Options")
app = App(
    name="tokenlake",
    help=ABOUT,
    help_epilogue=CODES,
    help_format="plaintext",
    help_formatter=PlainColumns(),
    default_parameter=Parameter(negative=(), show_default=False),
    group_parameters=_OPTIONS,
    version=f"tokenlake {__version__}",
    version_flags=["--version", "-V"],
    suppress_keyboard_interrupt=False,  # the command line says that it was interrupted
)
for _name, (_where, _, _help) in COMMANDS.items():
    app.command(f"tokenlake.cli.{_where}", name=_name, help=_help)
app["--help"].group = app["--version"].group = _OPTIONS


def call(tokens: Sequence[str]) -> int:
    """Call the command that the arguments name and return its exit code.

    Raises:
        CycloptsError: the arguments are wrong.
        ImportError: the command needs a package that is not installed.
    """
    if tokens and tokens[0] in COMMANDS:
        # In a command's own help, the list's one line gives way to the function's
        # docstring, a paragraph a line.
        command = app[tokens[0]]
        docstring = getattr(command.default_command, "__doc__", None) or ""
        description = inspect.cleandoc(docstring).partition("\n\nArgs:")[0]
        paragraphs: list[str] = []
        for paragraph in description.split("\n\n"):
            paragraphs.append(" ".join(paragraph.split()))
        command.help = "\n\n".join(paragraphs)
    result = app(
        tokens, exit_on_error=False, print_error=False, result_action="return_value"
    )
    # `--help` and `--version` return no code.
    if not isinstance(result, int):
        return 0
    return result


_VALUES: Final = {"--repo": "ORG/NAME", "--tokenizer": "NAME"}
"""Value of each option that a command needs, for messages."""


def _joined(message: str, advice: str) -> str:
    """Return a message with its advice, if there is any."""
    if not advice:
        return message
    return f"{message}; {advice}"


def usage(error: CycloptsError) -> tuple[str, str]:
    """Return the command whose arguments are wrong, and the reason."""
    # Messages of cyclopts name parameters of Python; these name what was typed.
    command = " ".join(("tokenlake", *(error.command_chain or ())))
    name_of_command = command.rpartition(" ")[2]
    if isinstance(error, UnusedCliTokensError):
        unused_tokens = list(error.unused_tokens or ())
        message = f"{command} has no use for {', '.join(map(repr, unused_tokens))}"
        advice = ""
        if unused_tokens:
            advice = advice_on_words(name_of_command, unused_tokens)
        return command, _joined(message, advice)
    if isinstance(error, UnknownOptionError):
        option = error.token.keyword or error.token.value
        known_options: list[str] = []
        for argument in error.argument_collection:
            known_options += [name for name in argument.names if name.startswith("-")]
        message = f"{command} has no option {option}"
        advice = advice_on_option(name_of_command, option, known_options)
        return command, _joined(message, advice)
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        parameter_name = error.keyword or error.argument.name
        if parameter_name.startswith("-") and error.keyword is None:
            value_name = _VALUES.get(parameter_name, "VALUE")
            return command, f"{command} needs the option {parameter_name} {value_name}"
        if parameter_name.startswith("-"):
            return command, f"{parameter_name} needs a value"
        return command, f"{command} needs {parameter_name}"
    return command, str(error).strip()


def completion(
    shell: Literal["bash", "zsh", "fish"], /, *, install: bool = False
) -> int:
    """Print or install the script that completes commands, options and names of
    datasets in a shell.

    For the current shell: `source <(tokenlake completion bash)`, or `tokenlake
    completion fish | source`. Permanently: `tokenlake completion bash --install`, which
    writes a file and, for bash and zsh, a line at the end of .bashrc or .zshrc that
    reads it.

    Args:
        shell: Name of the shell.
        install: Write the file instead of printing it.
    """
    # The script is made by importing every command.
    for name in COMMANDS:
        try:
            _ = app[name].default_command
        # A command whose packages are not installed is not completed.
        except ImportError:
            del app[name]
    if not install:
        sys.stdout.write(app.generate_completion(shell=shell))
        return 0
    path = app.install_completion(shell=shell)
    stdout().print(Text(f"{path} is written; a new {shell} completes tokenlake"))
    return 0
