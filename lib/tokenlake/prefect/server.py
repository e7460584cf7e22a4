"""One run of a flow from a command: fast to its first unit, and nothing left behind; and the Prefect server of its own.

The order is the point. Where the version is there already, nothing is started. Else the server starts at once, in a
process of its own, whose program is this file, too (:func:`serve`), unless one runs already. It takes seconds; while it
starts, this process imports Prefect, starts the workers and plans, and the flow then finds everything ready. So Prefect
must not be imported here; its own temporary server would start only with the first flow, and would be waited for.

Settings come from the environment and the user's profile. Prefect itself also reads `.env`, prefect.toml and
pyproject.toml of the working directory, which may hold anybody's data, and one of the settings names a file that says
what code to run: :func:`import_prefect` turns these off.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import http.client
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, NoReturn, final
from urllib.parse import urlsplit

from tokenlake import termination
from tokenlake.errors import CancelledError, ConfigError, TokenlakeError

if TYPE_CHECKING:
    from tokenlake.etl.engines import EngineName
    from tokenlake.etl.events import Watcher
    from tokenlake.etl.runner import BuildResult
    from tokenlake.prefect.engine import LocalEngine

#: Seconds for a running server to answer.
_ANSWER_SECONDS: Final = 5.0


def configured_api_url() -> str | None:
    """The server that the environment or the active profile names, found without importing Prefect.

    Prefect takes a second to import; whether a server of our own must be started has to be known before.

    Raises:
        ConfigError: it is named but does not answer.
    """
    for where, url in _named_servers():
        why = "it is not healthy"
        try:
            if is_healthy(url, _ANSWER_SECONDS):
                return url
        except OSError as cause:
            why = str(cause)
        raise ConfigError(
            f"the Prefect server {url} named by {where} does not answer ({why}): start it with"
            " `prefect server start`, or unset it, and the run starts a server of its own"
        )
    return None


def _named_servers() -> Iterator[tuple[str, str]]:
    """Where a server's address is set, in Prefect's order of precedence."""
    key = "PREFECT_API_URL"
    if key in os.environ:
        # Set but empty is Prefect's way to say: none, whatever the profile says.
        if os.environ[key]:
            yield key, os.environ[key]
        return
    path, profiles = profiles_path(), dict[str, Any]()
    with suppress(OSError):
        try:
            profiles = tomllib.loads(path.read_text("utf-8"))
        except ValueError as cause:
            raise ConfigError(f"{path} is not valid TOML: {cause}") from cause
    active = os.environ.get("PREFECT_PROFILE") or _lookup(profiles, "active")
    if active and (url := _lookup(profiles, "profiles", active, key)):
        yield f"profile {active!r} of {path}", url


def prefect_home() -> Path:
    """The folder of Prefect's own files, such as the database of a run's server."""
    return Path(_expanded(os.environ.get("PREFECT_HOME") or "~/.prefect")).absolute()


def _expanded(path: str) -> str:
    # Unlike pathlib, it leaves a path alone whose user has no home.
    return os.path.expanduser(path)  # noqa: PTH111


def profiles_path() -> Path:
    """The file of the user's profiles, where there is one."""
    path = os.environ.get("PREFECT_PROFILES_PATH")
    return Path(_expanded(path)).absolute() if path else prefect_home() / "profiles.toml"


def require_prefect_home() -> None:
    """Make the folder that the server of a run needs.

    Raises:
        ConfigError: it cannot be made, or not be written.
    """
    home = prefect_home()
    try:
        home.mkdir(parents=True, exist_ok=True)
        # Whether a file can be made says only an attempt: permissions do not know of file systems that are read-only.
        with tempfile.TemporaryFile(dir=home):
            pass
    except OSError as error:
        raise ConfigError(
            f"Prefect keeps the records of runs in {home}, which cannot be written ({error.strerror}): set "
            "PREFECT_HOME to a folder that can be, or run with --no-prefect",
            key="PREFECT_HOME",
        ) from error


def import_prefect() -> None:
    """Import Prefect, and have no file of the working directory configure it, now or later."""
    here = Path.cwd()
    # Its first import reads and applies the settings.
    with TemporaryDirectory() as empty:
        os.chdir(empty)
        try:
            from prefect.settings import base, sources
        finally:
            os.chdir(here)
    for model in _subclasses(base.PrefectBaseSettings):
        model.model_config.update(env_file=None, toml_file=None)
    # Its class for pyproject.toml has the name built in; the other one asks the model's configuration.
    base.PyprojectTomlConfigSettingsSource = sources.PrefectTomlConfigSettingsSource  # pyright: ignore[reportPrivateImportUsage, reportAttributeAccessIssue]


def _subclasses(model: type[Any]) -> Iterator[type[Any]]:
    yield model
    for derived in model.__subclasses__():
        yield from _subclasses(derived)


def _lookup(table: Mapping[str, Any], *keys: str) -> str | None:
    value: Any = table
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, str) and value else None


def is_healthy(api_url: str, seconds: float) -> bool:
    """Whether a server says that it is well.

    Raises:
        OSError: nobody answers.
    """
    url = urlsplit(api_url)
    connect = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    connection = connect(url.hostname or "", url.port, timeout=seconds)
    try:
        connection.request("GET", f"{url.path.rstrip('/')}/health")
        # A server that wants a password is a server that is there.
        return connection.getresponse().status in {200, 401, 403}
    except http.client.HTTPException as cause:
        raise OSError(f"not an HTTP server: {cause!r}") from cause
    finally:
        connection.close()


#: Seconds for a server to come up; the first start on an empty home makes its database.
STARTUP_SECONDS: Final = 120.0
_STOP_SECONDS: Final = 8.0  # for a server to end before it is killed
_MOST_STARTS: Final = 4  # of a server in one run
CHECK_SECONDS = 5.0  # between two health checks
ANSWER_SECONDS = 10.0  # for the answer to one
_MOST_MISSED: Final = 3  # checks in a row that nobody answers before a server is taken for frozen, and killed

#: Settings of Prefect that its client and our own server share; what the user has set stays.
CLIENT_SETTINGS: Final = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": str(int(STARTUP_SECONDS)),
    # Progress bars own the terminal; everything still goes to the run's log on the server.
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
}
_SERVER_SETTINGS: Final = {
    "PREFECT__SERVER_EPHEMERAL": "1",
    "PREFECT__SERVER_FINAL": "1",
    "PREFECT_UI_ENABLED": "false",
    # Block types are registered by `prefect server start`; here nobody browses them.
    "PREFECT_SERVER_REGISTER_BLOCKS_ON_START": "false",
    "PREFECT_SERVER_MEMOIZE_BLOCK_AUTO_REGISTRATION": "false",
    # Written one by one, task runs lag behind a fast flow and are lost at its end.
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "200",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "200",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_READ_BATCH_SIZE": "200",
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_BATCH_SIZE": "200",
}


@final
class EmbeddedServer:
    """A Prefect server on loopback that ends when this process does, however that happens.

    A server that dies, or no longer answers, is replaced on the same socket: a run of hours must not fail, or
    hang on its last events, because the machine was short of memory for a moment. Other users of the machine
    reach the socket, too; a password that is drawn for each run keeps them out.

    Attributes:
        api_url: address of its API.
        access: what the environment of a client needs to use it: address and password.
    """

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.api_url = f"http://127.0.0.1:{self._listening.getsockname()[1]}/api"
        self._password = f"tokenlake:{secrets.token_urlsafe(32)}"
        self.access = {"PREFECT_API_URL": self.api_url, "PREFECT_API_AUTH_STRING": self._password}
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the server
        self._starts_left = _MOST_STARTS
        self._came_up = self._stopping = False
        self._settled = threading.Event()
        self._lock = threading.Lock()
        self._process = self._start()
        self._watcher = threading.Thread(target=self._watch, name="server", daemon=True)
        self._watcher.start()

    def wait(self) -> dict[str, str]:
        """Return :attr:`access` when the server answers.

        Raises:
            TokenlakeError: it ended instead, or did not answer in time; with the end of its output.
        """
        self._settled.wait()
        if not self._came_up:
            self._end()
            self._log.seek(0)
            output = self._log.read().decode(errors="replace")[-4000:].strip() or "(nothing)"
            raise TokenlakeError(f"the embedded Prefect server did not come up; its output ends:\n{output}")
        return self.access

    def stop(self) -> None:
        """End the server politely, and after some seconds anyway; one that is still starting, at once."""
        if not self._came_up:
            # It is importing Prefect and holds nothing yet, and it would take seconds to notice that it is to end.
            self.kill()
            self._process.wait()
            # Where nobody listens any more, the question for its health is answered at once: there is no server.
            self._listening.close()
        self._end()
        self._log.close()

    def kill(self) -> None:
        """End the server at once; from any thread, or a signal's handler."""
        self._stopping = True
        self._process.kill()

    def _start(self) -> subprocess.Popen[bytes]:
        self._starts_left -= 1
        environment = {
            **_SERVER_SETTINGS,
            **CLIENT_SETTINGS,
            **{key: value for key, value in os.environ.items() if key != "PREFECT_API_URL"},
            # The server's own messages matter only when it fails.
            "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "NOTSET",
            # Not on the command line, which everybody on the machine can read.
            "PREFECT_SERVER_API_AUTH_STRING": self._password,
        }
        return subprocess.Popen(
            [sys.executable, "-P", __file__, str(self._listening.fileno())],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            pass_fds=[self._listening.fileno()],
            env=environment,
            # Ctrl-C reaches the parent alone, which still has states to report.
            start_new_session=True,
        )

    def _watch(self) -> None:
        """Ask for the server's health until the end; replace it when it dies or is silent."""

        def answers() -> bool:
            # Until the server is up, the request waits in the socket's queue: it is answered at once then.
            with suppress(OSError):
                return is_healthy(self.api_url, ANSWER_SECONDS)
            return False

        up, missed = False, 0
        while True:
            if self._has_ended(CHECK_SECONDS if up else 0.1):
                if not self._start_again():
                    break
                up, missed = False, 0
            elif answers():
                up, missed, self._came_up = True, 0, True
                self._settled.set()
            else:
                missed += 1
                if missed >= (_MOST_MISSED if up else STARTUP_SECONDS / ANSWER_SECONDS):
                    self._process.kill()
        # Whoever waits in its queue is sent away, and learns that there is no server.
        self._listening.close()
        self._settled.set()

    def _has_ended(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _start_again(self) -> bool:
        """Replace the server that ended, unless nobody needs it or it said itself that it cannot start."""
        with self._lock:
            refuses = self._process.returncode > 0 and not self._came_up
            if self._stopping or refuses or not self._starts_left:
                return False
            _close_input(self._process)
            self._process = self._start()
            return True

    def _end(self) -> None:
        with self._lock:
            self._stopping = True
        _close_input(self._process)
        self._process.terminate()
        if not self._has_ended(_STOP_SECONDS):
            self._process.kill()
        self._watcher.join()


def _close_input(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()


_RESUMES: Final = "cancelled; finished units are kept, and the same command resumes the run"
_CANCELLING: Final = "\ncancelling; Ctrl-C again ends at once\n"
_ENDED: Final = "\nended; finished units are kept, and the same command resumes the run\n"
_WORD_SECONDS: Final = 1.0  # that the end of the process waits for word of the cancellation
_SHOW_CURSOR: Final = "\x1b[?25h"  # which progress bars hide


def launch(
    config: str | Mapping[str, Any] | None,
    overrides: Sequence[str] = (),
    workers: int | None = None,
    on_event: Watcher | None = None,
    engine: EngineName | None = None,
    on_start: Callable[[], None] | None = None,
) -> BuildResult:
    """Run the flow that a configuration is for, `tokenize` or `mix`, and return what it built.

    A version that is there already is found without a flow, unless a server is configured, which is to have a record of
    every run. Call it from the main thread.

    Args:
        config: path of a YAML file, name of one in ``deployments/``, or a mapping; None: the demo.
        overrides: ``key=value`` texts.
        workers: worker processes; None: one per core.
        on_event: told everything that happens, from several threads.
        engine: where units run; None: on this machine.
        on_start: told that there will be a flow, before Prefect starts.

    Raises:
        CancelledError: Ctrl-C, or the run was cancelled on the server. It can be resumed.
        TokenlakeError: what the run failed with.
    """
    settings = {key: value for key, value in CLIENT_SETTINGS.items() if key not in os.environ}
    interrupts = _Interrupts()
    try:
        with interrupts.handled():
            url = configured_api_url()
            if url is None and isinstance(config, str) and (found := _finished(config, overrides, on_event)):
                return found
            if url is None:
                require_prefect_home()
            if on_start is not None:
                on_start()
            profiles = {"PREFECT_PROFILES_PATH": str(profiles_path())}
            with _environment(settings | profiles), _server(url, interrupts) as server:
                # Takes a second, in which the server starts.
                with _no_collection(), interrupts.deferred():
                    import_prefect()
                    from tokenlake.prefect.flows import run_flow
                served = None if server is None else server.wait
                return run_flow(served, config, overrides, workers, on_event, engine, interrupts.set_engine)
    except KeyboardInterrupt:
        raise CancelledError(_RESUMES) from None
    except Exception:
        # The exception of a Ctrl-C becomes another one where it falls into a callback of C code.
        if interrupts.has_begun:
            raise CancelledError(_RESUMES) from None
        raise


def _finished(config: str, overrides: Sequence[str], on_event: Watcher | None) -> BuildResult | None:
    """What was built before by the configuration of a file; None where a flow must look."""
    with _no_collection():
        from tokenlake.config.load import load_config
        from tokenlake.etl.run_log import asked_before
    # The name of a packaged configuration, no version yet, or an error that is the flow's to tell.
    with suppress(TokenlakeError):
        request = load_config(config, overrides)
        if asked_before(request):
            from tokenlake.etl.events import BuildRequested, ignore
            from tokenlake.etl.runner import finished_build

            (on_event or ignore)(BuildRequested(request.observability))
            return finished_build(request, on_event or ignore)
    return None


@contextmanager
def _server(url: str | None, interrupts: _Interrupts) -> Generator[EmbeddedServer | None]:
    """A server of our own for as long as the context lasts; None where one is configured."""
    if url is not None:
        yield None
        return
    server = EmbeddedServer()
    interrupts.server = server
    try:
        with _environment(server.access):
            yield server
    finally:
        server.stop()


@contextmanager
def _environment(values: Mapping[str, str]) -> Generator[None]:
    """Environment variables that are as before afterwards: a second run must not take this one's for the user's."""
    before = {key: os.environ.get(key) for key in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for key, value in before.items():
            os.environ.pop(key, None)
            if value is not None:
                os.environ[key] = value


@final
class _Interrupts:
    """What Ctrl-C does during a run: the first cancels, which a server can delay; the second ends this process.

    The exception that Python raises for Ctrl-C can be lost: an import that runs a callback, or C code of a library that
    calls Python, may swallow it or make another of it. So the message comes from the handler itself, the engine is
    told to cancel, and :attr:`has_begun` remembers it.

    Attributes:
        server: server that ends with this process; None as long as there is none.
        has_begun: whether Ctrl-C was pressed.
    """

    def __init__(self) -> None:
        self.server: EmbeddedServer | None = None
        self.has_begun = False
        self._engine: LocalEngine | None = None
        self._cancelling: threading.Thread | None = None
        self._is_deferred = False

    def set_engine(self, engine: LocalEngine) -> None:
        """Have the first Ctrl-C cancel an engine."""
        self._engine = engine
        if self.has_begun:
            raise KeyboardInterrupt

    @contextmanager
    def deferred(self) -> Generator[None]:
        """Have Ctrl-C raise its exception at the end of the context, not inside of it."""
        self._is_deferred = True
        try:
            yield
        finally:
            self._is_deferred = False
        if self.has_begun:
            raise KeyboardInterrupt

    @contextmanager
    def handled(self) -> Generator[None]:
        """Answer Ctrl-C for as long as the context lasts, unless whoever called sees to it."""
        ours = threading.current_thread() is threading.main_thread()
        if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            yield
            return
        signal.signal(signal.SIGINT, self._cancel)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _cancel(self, number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, self._end)
        self.has_begun = True
        os.write(2, _CANCELLING.encode())
        if self._engine is not None:
            # Not here: this thread may hold the locks that it takes.
            self._cancelling = threading.Thread(target=self._engine.cancel, name="cancel", daemon=True)
            self._cancelling.start()
        if not self._is_deferred:
            raise KeyboardInterrupt

    def _end(self, number: int, frame: object) -> NoReturn:
        if self.server is not None:
            self.server.kill()
        if self._cancelling is not None:
            # It is writing down that the build was cancelled. It may wait for a lock that this thread holds.
            self._cancelling.join(_WORD_SECONDS)
        os.write(2, f"{_SHOW_CURSOR if os.isatty(2) else ''}{_ENDED}".encode())
        # The workers end with their parent. Nothing else may be waited for: threads of Prefect's least of all.
        os._exit(termination.exit_code(CancelledError.exit_code))


@contextmanager
def _no_collection() -> Generator[None]:
    """Imports make many objects and no garbage; looking for it meanwhile costs a tenth of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.freeze()
            gc.enable()


#: Seconds that a polite stop may take before the process ends itself.
_END_SECONDS: Final = 5.0
_PR_SET_PDEATHSIG: Final = 1


def serve() -> None:
    """Serve on the socket whose descriptor is the only argument: the parent opened it, so no port is raced for.

    The process lives exactly as long as its standard input: the parent holds the other end, and the kernel closes it
    however the parent ends. On Linux the kernel also kills the process then, should it be stopped or stuck.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.umask(0o077)  # the database holds Secret blocks, and their key
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # Imports make millions of objects and no garbage; collecting meanwhile costs a tenth of the start.
    gc.disable()
    # Here and not above: these take seconds, in which the parent may already have gone.
    import_prefect()
    import uvicorn
    from fastapi.middleware.cors import CORSMiddleware
    from fastapi.middleware.trustedhost import TrustedHostMiddleware
    from prefect.server.api.server import create_app
    from prefect.settings import PREFECT_HOME

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            with _alone(PREFECT_HOME.value()):
                await super().startup(sockets)
            gc.freeze()
            gc.enable()

    app = create_app()
    close_pages(app)
    # Prefect lets pages of every origin read its answers, and answers to every name: here no browser calls.
    app.user_middleware = [one for one in app.user_middleware if one.cls is not CORSMiddleware]
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1"])
    config = uvicorn.Config(app, log_level="error", lifespan="on", timeout_graceful_shutdown=2)
    Server(config).run(sockets=[socket.socket(fileno=int(sys.argv[1]))])


def close_pages(app: Any) -> None:
    """Leave of Prefect's server the API alone, without the pages that describe it to whoever asks.

    FastAPI serves ``/docs``, ``/redoc`` and ``/openapi.json`` in each application; the outer ones ask for no password.

    Args:
        app: The application of ``create_app``; the API is mounted in it by the name ``api``.
    """
    app.router.routes[:] = [route for route in app.router.routes if getattr(route, "name", "") == "api"]
    for mount in app.router.routes:
        api = mount.app
        pages = {api.docs_url, api.redoc_url, api.openapi_url, api.swagger_ui_oauth2_redirect_url}
        api.router.routes[:] = [
            route for route in api.router.routes if getattr(route, "path", "") not in pages
        ]


@contextmanager
def _alone(home: Path) -> Generator[None]:
    """Hold the home's lock: two servers that migrate one new database at a time both fail."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / "tokenlake-server.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _end_with_parent() -> None:
    # Not through sys.stdin: its lock, held by a thread, makes an interpreter that wants to end abort.
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(_END_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    serve()
