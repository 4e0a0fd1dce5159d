"""The JSON schemas in ``docs/schemas``, made from the types of the documents.

Belongs here: the file of each document, and how a type becomes a schema. Does not belong here: a key
(:mod:`sync_pipeline.core.documents`).
"""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from pydantic import TypeAdapter
from typing_extensions import is_typeddict

from sync_pipeline.core.documents import common, gates, installation, ledger, quality, runner

DOCUMENTS: Mapping[str, tuple[str, Any]] = {
    "admin-breakers": ("Circuit breakers", gates.BreakerList),
    "admin-jobs": ("Jobs, and the actions of people", ledger.JobDocument),
    "admin-limits": ("The shared rate limits", gates.LimitList),
    "admin-pauses": ("Pauses", gates.PauseList),
    "admin-replay": ("Replay of a run or a batch", runner.Replay),
    "admin-rereading": ("Windows that are read again", ledger.ResyncSet),
    "admin-runs": ("Runs and their batches", ledger.RunDocument),
    "admin-verify": ("Proofs over our own records", quality.Verification),
    "completeness": ("Completeness statement", quality.CompletenessStatement),
    "health": ("Answer of a probe", installation.Probe),
    "quarantine-entry": ("Entry of quarantine", quality.QuarantineEntry),
    "quarantine-list": ("List of quarantine", quality.QuarantineList),
    "quarantine-retry": ("Retry of quarantine", quality.QuarantineRetry),
    "reaper": ("A pass of the reaper", ledger.ReaperPass),
    "reconcile": ("Differences between the source and the stored rows", quality.Reconcile),
    "repair-remap": ("Result of scm-sync repair remap", runner.Remap),
    "retention": ("Records of finished work that are deleted", ledger.RetentionPass),
    "runner-job": ("Plan of the runner for one job type", runner.Planned),
    "runner-result": ("Result of the runner", runner.RunnerResult),
    "runner-run": ("Run of the runner for one job type", runner.Run),
    "runner-window": ("Window of the runner", common.WindowRange),
    "scheduler": ("A round of planning", ledger.SchedulerRound),
    "settings": ("Settings in force", installation.SettingsInForce),
    "worker": ("Jobs that a worker did, or would do", ledger.WorkerDocument),
}
"""The title and the type of each document, by the name of its file."""

_WIDTH = 130


def texts() -> dict[str, str]:
    """The text of each schema, by its path in the clone."""
    return {
        f"docs/schemas/{name}.json": _text(schema(title, kind)) + "\n"
        for name, (title, kind) in DOCUMENTS.items()
    }


def schema(title: str, kind: Any) -> dict[str, Any]:
    """The JSON schema of a type, with the sentences below the keys. Unknown keys are allowed."""
    found = TypeAdapter(kind).json_schema()
    for part in (found, *found.get("$defs", {}).values()):
        if "properties" in part:
            part["additionalProperties"] = True
            for name, text in _sentences(_class(part["title"])).items():
                part["properties"][name]["description"] = text
        elif "enum" in part:
            part.pop("description", None)  # it is for readers of the code
        _simplify(part)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **found}


def _text(value: Any, indent: str = "") -> str:
    """JSON, with each value that fits on a line of its own."""
    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or len(indent + line) < _WIDTH:
        return line
    inner = indent + "  "
    if isinstance(value, dict):
        parts = [f"{json.dumps(name)}: {_text(one, inner)}" for name, one in value.items()]
    else:
        parts = [_text(one, inner) for one in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}\n{inner}" + f",\n{inner}".join(parts) + f"\n{indent}{closing}"


def _class(name: str) -> Any:
    """The document class of this name. The names are unique, as a test checks."""
    return {one.__name__: one for one in classes()}[name]


def classes() -> Iterator[Any]:
    """Every document class."""
    for module in (common, gates, installation, ledger, quality, runner):
        for one in vars(module).values():
            if is_typeddict(one) and one.__module__ == module.__name__:
                yield one


def _sentences(kind: Any) -> dict[str, str]:
    """The string below each key of a class and of its bases."""
    found: dict[str, str] = {}
    for base in getattr(kind, "__orig_bases__", ()):
        if is_typeddict(base):
            found |= _sentences(base)
    try:
        (definition,) = ast.parse(inspect.getsource(kind)).body
    except OSError:  # it is made by a call
        return found
    assert isinstance(definition, ast.ClassDef)
    for key, text in pairwise(definition.body):
        if isinstance(key, ast.AnnAssign) and isinstance(text, ast.Expr):
            found[ast.unparse(key.target)] = " ".join(ast.literal_eval(text.value).split())
    return found


def _simplify(part: dict[str, Any]) -> None:
    """Remove the titles that pydantic makes from names, and write "or null" in the short form."""
    part.pop("title", None)
    for one in part.get("properties", {}).values():
        one.pop("title", None)
        if len(choice := one.get("anyOf", ())) == 2 and choice[1] == {"type": "null"} and "type" in choice[0]:
            del one["anyOf"]
            one |= choice[0]
            one["type"] = [one["type"], "null"]
            if "enum" in one:
                one["enum"].append(None)
