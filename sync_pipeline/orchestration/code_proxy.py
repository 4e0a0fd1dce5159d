"""The program that is the code server of ``scm-sync up``: Dagster's proxy, and behind it the process that has
our definitions.

Belongs here: only that. Who starts it is :mod:`sync_pipeline.orchestration.ui`; how others talk to it is in
:mod:`sync_pipeline.orchestration.code_server`.

Dagster's own (``dagster code-server start``) ends the former process at every reload, also where the new one
did not start or cannot load the definitions. It notices neither that the process is gone nor that it was told
to end, and then every run fails. Here

* a reload first loads the definitions in a new process, and the former one stays where that fails;
* a process that ended, or that was told to end, is replaced, and a run that it refused starts in the next;
* a slow process is waited for, however long it takes: a busy machine gets no second process to load. Only one
  that uses no processor at all while it is asked is taken for hanging.

Runs are children of the process that started them and outlive it.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import re
import signal
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import psutil
from dagster import DagsterInstance, deserialize_value, serialize_value

from sync_pipeline.core.safe_text import one_line
from sync_pipeline.orchestration.code_server import LOCATION_NAME
from sync_pipeline.orchestration.console import cause_of
from sync_pipeline.orchestration.dagster_internals import (
    DEFAULT_GRPC_TIMEOUT,
    CancelExecutionRequest,
    CancelExecutionResult,
    DagsterGrpcClient,
    DagsterGrpcServer,
    DagsterProxyApiServicer,
    DagsterUserCodeProcessError,
    DagsterUserCodeUnreachableError,
    FuturesAwareThreadPoolExecutor,
    GrpcServerProcess,
    ListRepositoriesResponse,
    LoadableTargetOrigin,
    SerializableErrorInfo,
    ServerRegistryEntry,
    StartRunResult,
    dagster_api_pb2,
    serializable_error_info_from_exc_info,
    setup_interrupt_handlers,
)
from sync_pipeline.orchestration.processes import interrupt

_MODULE = "sync_pipeline.definitions"
# A process that loses its proxy ends after so many seconds, once its runs have ended. On a busy machine a
# shorter time would end it although its proxy lives.
_ORPHAN_SECONDS = 120
# Threads that wait: for the process behind it, and there for runs that start and ticks that go on. Dagster's
# number is by processors; with two of them six calls made every further one look slow.
_WAITING_CALLS = 64
_POLL_SECONDS = 1.0
_MIN_PINGS = 120
_LONGEST_PAUSE = 60.0
_WAIT_SECONDS = 0.2
_WAITS = 1200
# The error of a Dagster process that ends once its runs have ended. It has no other mark.
_SHUTDOWN_MESSAGE = "after telling it to shut down"

_log = logging.getLogger("dagster.code_server")


@dataclass(frozen=True, slots=True)
class Ping:
    """One look at a process that does not answer: its processor time so far, in seconds, and whether it
    sleeps. A process that waits for a processor or a disk does not sleep, nor does a stopped one."""

    cpu: float
    sleeps: bool


def hangs(pings: Sequence[Ping]) -> bool:
    """True if a process will never answer: it was asked all the time, only slept and used no processor. Looks
    are counted, not seconds, because a suspended machine proves nothing."""
    return len(pings) >= _MIN_PINGS and all(ping.sleeps and ping.cpu == pings[0].cpu for ping in pings)


@dataclass
class _Loaded:
    """A process with the definitions; ``error`` says in one line why it has none."""

    process: GrpcServerProcess
    client: DagsterGrpcClient
    server_id: str
    error: str | None
    replaced: threading.Event = field(default_factory=threading.Event)
    asked: bool = False
    asked_to_end: bool = False
    pings: deque[Ping] = field(default_factory=lambda: deque(maxlen=_MIN_PINGS))

    @property
    def lives(self) -> bool:
        """True while the process is there."""
        return self.process.server_process.poll() is None

    @property
    def serves(self) -> bool:
        """True while it is there and takes runs."""
        return self.lives and not self.asked_to_end


class CodeServer(DagsterProxyApiServicer):
    """Dagster's proxy with the rules of this module."""

    # Dagster's constructor sets None, from which a type checker would infer None for ever.
    _client: Any
    _load_error: Any

    def __init__(self, **options: Any) -> None:
        self._loaded: _Loaded | None = None
        self._over = threading.Event()
        super().__init__(**options)
        threading.Thread(target=self._watch, name="look after", daemon=True).start()

    # Called by Dagster's constructor: a location that cannot be loaded is served too, and the page says why.
    def _reload_location(self) -> None:
        try:
            self._take(self._begin())
        except Exception as error:
            self._load_error = serializable_error_info_from_exc_info(sys.exc_info())
            _log.error("the process with the definitions did not start: %s", _reason(error))

    def ReloadCode(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Replace the process by one that has loaded the definitions again; abort with one line where they
        cannot be loaded and the former ones can."""
        with self._reload_lock:
            former = self._loaded
            try:
                fresh = self._begin()
                why = fresh.error
            except Exception as error:
                fresh, why = None, _reason(error)
            keeps = former is not None and former.serves and former.error is None
            if fresh is not None and (why is None or not keeps):
                self._take(fresh)
                return dagster_api_pb2.ReloadCodeReply()
            if fresh is not None:
                _end(fresh)
        message = (
            f"the former definitions stay in use: {why}" if keeps else f"there are no definitions: {why}"
        )
        _log.warning("%s", message)
        return context.abort(grpc.StatusCode.FAILED_PRECONDITION, message)

    def GetServerId(self, request: Any, context: grpc.ServicerContext) -> Any:
        """From memory: page and daemon ask each second, and take two seconds without an answer for a server
        that is away."""
        if self._loaded is None:
            return super().GetServerId(request, context)
        return dagster_api_pb2.GetServerIdReply(server_id=self._loaded.server_id)

    def StartRun(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Start a run; one that a process refuses because it was told to end is started in the next. A call
        that breaks off may have started the run. If it has not, Dagster's queue tries again later."""
        while True:
            loaded = self._serving()
            reply = super().StartRun(request, context)  # type: ignore[no-untyped-call]
            if self._over.is_set() or self._shutdown_once_executions_finish_event.is_set():
                return reply
            result = deserialize_value(reply.serialized_start_run_result, StartRunResult)
            if loaded is None or result.success or _SHUTDOWN_MESSAGE not in (result.message or ""):
                return reply
            loaded.asked_to_end = True

    def CancelExecution(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Stop a run, also one whose process was started by a process that is gone."""
        reply = super().CancelExecution(request, context)  # type: ignore[no-untyped-call]
        result = deserialize_value(reply.serialized_cancel_execution_result, CancelExecutionResult)
        if result.success:
            return reply
        asked = deserialize_value(request.serialized_cancel_execution_request, CancelExecutionRequest)
        with DagsterInstance.get() as instance:
            run = instance.get_run_by_id(asked.run_id)
            if run is None or not interrupt(run):
                return reply
        done = CancelExecutionResult(success=True, message=None, serializable_error_info=None)
        return dagster_api_pb2.CancelExecutionReply(serialized_cancel_execution_result=serialize_value(done))

    # Every other call goes through one of these two.
    def _query(self, api_name: str, request: Any, context: Any, timeout: int = DEFAULT_GRPC_TIMEOUT) -> Any:
        self._serving()
        return super()._query(api_name, request, context, timeout)

    def _streaming_query(
        self, api_name: str, request: Any, context: Any, timeout: int = DEFAULT_GRPC_TIMEOUT
    ) -> Any:
        self._serving()
        return super()._streaming_query(api_name, request, context, timeout)

    def cleanup(self) -> None:
        """End everything; called by Dagster's server."""
        self._over.set()
        super().cleanup()  # type: ignore[no-untyped-call]

    # The process behind it ------------------------------------------------------------------------------

    def _begin(self) -> _Loaded:
        """A new process, once it has tried to load the definitions."""
        registry = self._grpc_server_registry
        registry.reload_grpc_endpoint(self._origin)
        entry = registry.get_grpc_server_entry(self._origin)
        assert isinstance(entry, ServerRegistryEntry)
        process = entry.process
        try:
            client = process.create_client()  # type: ignore[no-untyped-call]
            answer = deserialize_value(
                client.list_repositories(), (ListRepositoriesResponse, SerializableErrorInfo)
            )
            error = _plain(cause_of(answer)) if isinstance(answer, SerializableErrorInfo) else None
            return _Loaded(process, client, client.get_server_id(), error)
        except Exception:
            threading.Thread(target=process.shutdown_server, daemon=True).start()
            raise

    def _take(self, fresh: _Loaded) -> None:
        former, self._loaded = self._loaded, fresh
        self._client, self._load_error = fresh.client, None
        threading.Thread(target=_ask, args=(fresh,), name="heartbeat", daemon=True).start()
        if former is not None:
            _end(former)

    def _serving(self) -> _Loaded | None:
        """The process in use. While it is being replaced, wait for the next one: a caller that gets an error
        repeats work, which adds to the load."""
        for _ in range(_WAITS):
            loaded = self._loaded
            if (loaded is not None and loaded.serves) or self._over.wait(_WAIT_SECONDS):
                break
        return self._loaded

    def _watch(self) -> None:
        """Replace the process when it ended, was told to end, or hangs. Only this and a reload start a
        process, so a process that does not start costs one attempt a minute."""
        pause = _POLL_SECONDS
        while not self._over.wait(pause):
            pause = _POLL_SECONDS
            loaded = self._loaded
            why = _unfit(loaded)
            if why is None:
                continue
            try:
                with self._reload_lock:
                    if self._loaded is loaded and not self._over.is_set():
                        _log.warning("the process with the definitions %s; starting it again", why)
                        self._take(self._begin())
            except Exception as error:
                _log.error("the process with the definitions does not start: %s", _reason(error))
            if self._loaded is None or self._loaded.error is not None or not self._loaded.serves:
                # A person may be correcting the definitions.
                pause = _LONGEST_PAUSE


def _unfit(loaded: _Loaded | None) -> str | None:
    """Why the process has to be replaced; None where it serves, also slowly."""
    if loaded is None:
        return "did not start"
    if not loaded.lives:
        return f"ended by itself with {loaded.process.server_process.returncode}"
    if loaded.asked_to_end:
        return "was told to end"
    if _hangs(loaded):
        # Its runs are processes of their own and go on.
        loaded.process.server_process.send_signal(signal.SIGKILL)
        return "hangs"
    return None if loaded.error is None else f"has no definitions ({loaded.error})"


def _ask(loaded: _Loaded) -> None:
    """Send heartbeats for as long as the process is in use; ``asked`` while one waits for its answer."""
    while not loaded.replaced.wait(_POLL_SECONDS):
        loaded.asked = True
        with contextlib.suppress(DagsterUserCodeUnreachableError):
            loaded.client.heartbeat("alive")
            loaded.asked = False


def _hangs(loaded: _Loaded) -> bool:
    """Have one more look at the process; see :func:`hangs`."""
    if not loaded.asked:
        loaded.pings.clear()
        return False
    try:
        process = psutil.Process(loaded.process.pid)
        used = process.cpu_times()
        loaded.pings.append(Ping(used.user + used.system, process.status() == psutil.STATUS_SLEEPING))
    except psutil.Error:
        loaded.pings.clear()
    return hangs(loaded.pings)


def _end(loaded: _Loaded) -> None:
    """Tell the process to end once its runs have ended. A process that does not answer gets the call later,
    or ends because no heartbeat comes. This method does not wait for that."""
    loaded.replaced.set()
    threading.Thread(target=loaded.process.shutdown_server, daemon=True).start()


def _reason(error: Exception) -> str:
    """Why a process did not start, without the long command that Dagster adds."""
    infos = error.user_code_process_error_infos if isinstance(error, DagsterUserCodeProcessError) else []
    text = cause_of(infos[0]) if infos else str(error)
    return _plain(text.partition(" with the command: ")[0])


def _plain(text: str) -> str:
    """One line, without the name of the class in front of the text of an error."""
    return re.sub(r"^[A-Za-z_][\w.]*(Error|Exception): ", "", one_line(text)[:500])


def _divert(log: Path) -> None:
    """Redirect the output of this process and its children to ``log``. Only lines for a person still go to
    the former stderr, because runs print much between them.
    """
    handler = logging.StreamHandler(os.fdopen(os.dup(2), "w", buffering=1))
    handler.setFormatter(logging.Formatter("scm-sync: %(message)s"))
    _log.addHandler(handler)
    _log.propagate = False
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.close(output)


def main() -> None:
    """Serve on the socket that the command names, until a signal or until it is told to end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("socket_path", type=Path)
    parser.add_argument("log", type=Path)
    given = parser.parse_args()
    socket_path: Path = given.socket_path
    _divert(given.log)
    # The process behind it listens in the same private folder; runs keep the folder of this machine.
    tempfile.tempdir = str(socket_path.parent)
    os.environ.setdefault("DAGSTER_GRPC_MAX_WORKERS", str(_WAITING_CALLS))
    setup_interrupt_handlers()
    over = threading.Event()
    servicer = CodeServer(
        loadable_target_origin=LoadableTargetOrigin(
            executable_path=sys.executable, working_directory=os.getcwd(), module_name=_MODULE
        ),
        fixed_server_id=None,
        container_image=None,
        container_context=None,
        inject_env_vars_from_instance=False,
        location_name=LOCATION_NAME,
        log_level="warning",
        startup_timeout=0,
        server_termination_event=over,
        instance_ref=None,
        logger=_log,
        server_heartbeat=False,
        server_heartbeat_timeout=_ORPHAN_SECONDS,
        heartbeat_ttl=_ORPHAN_SECONDS,
        defs_state_info=None,
    )
    server = DagsterGrpcServer(
        server_termination_event=over,
        dagster_api_servicer=servicer,
        socket=str(socket_path),
        threadpool_executor=FuturesAwareThreadPoolExecutor(max_workers=_WAITING_CALLS),
        logger=_log,
    )
    with contextlib.suppress(KeyboardInterrupt):
        server.serve()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
