"""Every name that we take from Dagster's private modules, each with the reason why there is no public one.

Belongs here: imports only. `sync_pipeline_tests/test_house.py` refuses private imports anywhere else, so an
upgrade of Dagster is checked in this file. The minor version is pinned in ``pyproject.toml``.

The names of the first part are loaded by ``import dagster`` anyway. Those of the second part are loaded at
their first use: a code location and most commands need none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

# The type of what the public define_asset_job returns; only used in annotations.
from dagster._core.definitions.unresolved_asset_job_definition import (
    UnresolvedAssetJobDefinition as UnresolvedAssetJobDefinition,
)

# Dagster shows an error of this class without a call stack. Its public Failure always shows one.
from dagster._core.errors import DagsterUserCodeProcessError as DagsterUserCodeProcessError

# An exception of the gRPC client; the public errors do not include it.
from dagster._core.errors import DagsterUserCodeUnreachableError as DagsterUserCodeUnreachableError

# Materializations are written in batches. The public log_event writes each in database sessions of its own.
from dagster._core.events import DagsterEventBatchMetadata as DagsterEventBatchMetadata

# Distinguishes an interrupted run from a failed one; public events hold the value but not its type.
from dagster._core.events import RunFailureReason as RunFailureReason

# The argument of the hook from_config_value, which every storage class of dagster.yaml has.
from dagster._serdes import ConfigurableClassData as ConfigurableClassData

# The form of an error in events and answers; public events hold values of it.
from dagster_shared.error import SerializableErrorInfo as SerializableErrorInfo

# isort: off
if TYPE_CHECKING:
    # The public DagsterInstance.get_backfills takes and returns them.
    from dagster._core.execution.backfill import (
        BULK_ACTION_TERMINAL_STATUSES as BULK_ACTION_TERMINAL_STATUSES,
        BulkActionsFilter as BulkActionsFilter,
        BulkActionStatus as BulkActionStatus,
        PartitionBackfill as PartitionBackfill,
    )

    # A reload and a ping of our code server. The public GraphQL client needs a running page for them.
    from dagster._grpc.client import (
        DEFAULT_GRPC_TIMEOUT as DEFAULT_GRPC_TIMEOUT,
        DagsterGrpcClient as DagsterGrpcClient,
    )

    # The code server of `scm-sync up` is Dagster's proxy with other rules for a reload
    # (docs/decisions/code-server.md). Dagster has it as a command only, without any hook.
    from dagster._core.remote_representation.grpc_server_registry import (
        ServerRegistryEntry as ServerRegistryEntry,
    )
    from dagster._core.types.loadable_target_origin import LoadableTargetOrigin as LoadableTargetOrigin
    from dagster._core.utils import FuturesAwareThreadPoolExecutor as FuturesAwareThreadPoolExecutor
    from dagster._grpc.__generated__ import dagster_api_pb2 as dagster_api_pb2
    from dagster._grpc.proxy_server import DagsterProxyApiServicer as DagsterProxyApiServicer
    from dagster._grpc.server import (
        DagsterGrpcServer as DagsterGrpcServer,
        GrpcServerProcess as GrpcServerProcess,
    )
    from dagster._grpc.types import (
        CancelExecutionRequest as CancelExecutionRequest,
        CancelExecutionResult as CancelExecutionResult,
        ListRepositoriesResponse as ListRepositoriesResponse,
        StartRunResult as StartRunResult,
    )
    from dagster._utils.error import (
        serializable_error_info_from_exc_info as serializable_error_info_from_exc_info,
    )
    from dagster._utils.interrupts import setup_interrupt_handlers as setup_interrupt_handlers

    # `scm-sync ui` serves the page behind our guard. The command dagster-webserver serves it without one.
    from dagster._core.workspace.context import WorkspaceProcessContext as WorkspaceProcessContext
    from dagster._core.workspace.load_target import WorkspaceFileTarget as WorkspaceFileTarget
    from dagster_webserver.webserver import DagsterWebserver as DagsterWebserver

    # Tells an unreachable storage from other errors; the package documents its storage classes only.
    from dagster_postgres.utils import DagsterPostgresException as DagsterPostgresException
# isort: on

DAEMON_MODULE = "dagster._daemon"
"""The module of the script ``dagster-daemon``, which may not be on the PATH."""

_LOADED_AT_FIRST_USE = {
    "dagster._core.execution.backfill": (
        "BULK_ACTION_TERMINAL_STATUSES",
        "BulkActionStatus",
        "BulkActionsFilter",
        "PartitionBackfill",
    ),
    "dagster._core.remote_representation.grpc_server_registry": ("ServerRegistryEntry",),
    "dagster._core.types.loadable_target_origin": ("LoadableTargetOrigin",),
    "dagster._core.utils": ("FuturesAwareThreadPoolExecutor",),
    "dagster._core.workspace.context": ("WorkspaceProcessContext",),
    "dagster._core.workspace.load_target": ("WorkspaceFileTarget",),
    "dagster._grpc.__generated__": ("dagster_api_pb2",),
    "dagster._grpc.client": ("DEFAULT_GRPC_TIMEOUT", "DagsterGrpcClient"),
    "dagster._grpc.proxy_server": ("DagsterProxyApiServicer",),
    "dagster._grpc.server": ("DagsterGrpcServer", "GrpcServerProcess"),
    "dagster._grpc.types": (
        "CancelExecutionRequest",
        "CancelExecutionResult",
        "ListRepositoriesResponse",
        "StartRunResult",
    ),
    "dagster._utils.error": ("serializable_error_info_from_exc_info",),
    "dagster._utils.interrupts": ("setup_interrupt_handlers",),
    "dagster_postgres.utils": ("DagsterPostgresException",),
    "dagster_webserver.webserver": ("DagsterWebserver",),
}


def __getattr__(name: str) -> Any:
    for module, names in _LOADED_AT_FIRST_USE.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
