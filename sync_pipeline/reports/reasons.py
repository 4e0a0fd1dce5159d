"""The catalogue of reasons why a (repository, job type) is not healthy, with the meaning and the remedy of
each.

Belongs here: one entry for each reason, in the words that ``scm-sync status``, ``scm-sync doctor``,
``scm-sync health``, the asset checks and ``docs/health.md`` share. Does not belong here: when a reason holds
(:mod:`sync_pipeline.reports.health`), and why a job is not started now (:mod:`sync_pipeline.policy`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class HealthReason(StrEnum):
    """A reason why a (repository, job type) is not healthy."""

    NEVER_SYNCED = "never_synced"
    STALE = "stale"
    GAP = "gap"
    INCOMPLETE = "incomplete"
    FAILED_WINDOW = "failed_window"
    QUARANTINE = "quarantine"
    DEFERRED_FETCH = "obligation"
    USABLE = "usable"
    PLANNED_STALLED = "planned_stalled"
    UNREADABLE = "unreadable"
    UNREACHABLE = "unreachable"
    LOGIN_PAGE = "login_page"
    MOVED = "moved"
    DENIED = "denied"
    GONE = "gone"
    REPLACED = "replaced"
    CREDENTIAL = "credential"
    DISABLED = "disabled"
    REGRESSED = "poorer"
    MISMATCH = "mismatch"
    UNREPAIRED = "unrepaired"


WAITS_FOR_ITSELF = frozenset({HealthReason.NEVER_SYNCED, HealthReason.INCOMPLETE, HealthReason.MISMATCH})
"""Reasons that go away without a person, as queued history is read and what differs is repaired."""

_NO_ACCESS = (
    HealthReason.CREDENTIAL,
    HealthReason.DENIED,
    HealthReason.GONE,
    HealthReason.REPLACED,
    HealthReason.MOVED,
    HealthReason.LOGIN_PAGE,
    HealthReason.UNREACHABLE,
)
_FOLLOWS_FROM_NO_ACCESS = frozenset(
    {
        HealthReason.NEVER_SYNCED,
        HealthReason.INCOMPLETE,
        HealthReason.STALE,
        HealthReason.GAP,
        HealthReason.FAILED_WINDOW,
    }
)

PASSES = frozenset({HealthReason.DISABLED, HealthReason.USABLE})
"""Reasons that are reported and are no defect."""

WARNINGS = WAITS_FOR_ITSELF | PASSES | {HealthReason.PLANNED_STALLED}
"""Reasons that are a warning at most: the check of the asset is yellow, not red."""


@dataclass(frozen=True, slots=True)
class ReasonText:
    """``meaning`` and ``remedy`` of a reason, one line each. ``SPEC`` in a remedy stands for the repository.
    Where the remedy depends on the kind of source, there are ``svn`` and ``gitlab`` instead."""

    meaning: str
    remedy: str = ""
    svn: str = ""
    gitlab: str = ""

    def remedy_of(self, spec: str) -> str:
        """The remedy for the repository ``spec``; for ``SPEC`` the one of every kind."""
        if self.remedy:
            return self.remedy.replace("SPEC", spec)
        if spec.startswith("svn:"):
            return self.svn.replace("SPEC", spec)
        if spec.startswith("gitlab:"):
            return self.gitlab.replace("SPEC", spec)
        end = "" if self.svn.endswith(".") else "."
        return f"SVN: {self.svn}{end} GitLab: {self.gitlab}".replace("SPEC", spec)


CATALOGUE: Mapping[HealthReason, ReasonText] = {
    HealthReason.NEVER_SYNCED: ReasonText(
        "no visit has finished successfully yet",
        "wait for the scheduler, or: scm-sync runner incremental --repo SPEC",
    ),
    HealthReason.INCOMPLETE: ReasonText(
        "history is queued and waits to be read",
        "wait while scm-sync up reads it, or: scm-sync runner backfill --repo SPEC",
    ),
    HealthReason.STALE: ReasonText(
        "the last complete visit is older than stale_after_seconds",
        "scm-sync status names what is silent, paused or held back; start scm-sync up if it does not run",
    ),
    HealthReason.GAP: ReasonText(
        "revisions or days are not covered and no job will read them",
        "scm-sync runner backfill --repo SPEC reads exactly what is missing",
    ),
    HealthReason.FAILED_WINDOW: ReasonText(
        "a job is dead: its attempts are used up or the error was permanent",
        "remove the cause that the error names, then: scm-sync runner backfill --repo SPEC",
    ),
    HealthReason.UNREACHABLE: ReasonText(
        "the server of the source does not answer, or sends an invalid response",
        "start the server or correct its address, then: scm-sync doctor; syncing goes on by itself",
    ),
    HealthReason.LOGIN_PAGE: ReasonText(
        "an HTML page came instead of data, such as a login or error page of a proxy",
        "correct the URL or the proxy (SCM_GITLAB_URL, HTTPS_PROXY, NO_PROXY), then: scm-sync doctor",
    ),
    HealthReason.CREDENTIAL: ReasonText(
        "the server refuses the token in force (expired, revoked, wrong or without the scope), or there is "
        "none for it",
        "create a token with scope read_api and set it (SCM_GITLAB_TOKEN, or its file); it counts at once",
    ),
    HealthReason.DENIED: ReasonText(
        "the source refuses us",
        svn="correct SCM_SVN_USERNAME and SCM_SVN_PASSWORD, or the rights on the server, then: "
        "scm-sync runner incremental --repo SPEC",
        gitlab="if the token's user may not see it, give it at least the role Reporter. If the feature is "
        "switched off for members, switch it on in the project's settings. Then: "
        "scm-sync runner incremental --repo SPEC",
    ),
    HealthReason.DISABLED: ReasonText(
        "green: the feature is switched off in the project (repository, or merge requests)",
        "nothing; it is tried again every hour, and its backfill waits until the feature is switched on",
    ),
    HealthReason.MOVED: ReasonText(
        "the server says that the source has another address now",
        svn="scm-sync repo relocate SPEC URL --reason ... keeps what is stored",
        gitlab="correct the URL of the server (SCM_GITLAB_URL)",
    ),
    HealthReason.GONE: ReasonText(
        "the source was not found in repeated checks",
        svn="scm-sync repo relocate SPEC URL --reason ... if it has another address now; else: "
        "scm-sync repo retire SPEC --reason ...",
        gitlab="give the token's user access to the project; if it is deleted: "
        "scm-sync repo retire SPEC --reason ...",
    ),
    HealthReason.REPLACED: ReasonText(
        "another repository answers at the address",
        "see docs/decisions/replaced-repositories.md; when the old one is back: "
        "scm-sync runner incremental --repo SPEC",
    ),
    HealthReason.QUARANTINE: ReasonText(
        "rows could not be stored",
        "scm-sync admin quarantine list --repo SPEC; fix the cause, then: "
        "scm-sync admin quarantine retry --repo SPEC",
    ),
    HealthReason.DEFERRED_FETCH: ReasonText(
        "a deferred fetch: a detail could not be read yet",
        "nothing at first: it is retried by itself; scm.deferred_fetches has the error",
    ),
    HealthReason.USABLE: ReasonText(
        "green: the rows are usable and not yet complete; planned fetches of their details wait",
        "nothing: they are read while nothing more urgent waits; scm-sync status estimates how long it takes",
    ),
    HealthReason.PLANNED_STALLED: ReasonText(
        "planned fetches wait, and none was read for a day although jobs ran",
        "scm-sync scheduler --dry-run names what goes first (more_urgent); to read them now: "
        "scm-sync runner incremental --repo SPEC",
    ),
    HealthReason.UNREADABLE: ReasonText(
        "the server refuses a kind of detail (such as approvals) for every merge request; "
        "green if the server has no such details",
        "give the token's user the right to see it, or nothing; it is tried every day and after a "
        "change of token (error: scm.unreadable_details)",
    ),
    HealthReason.MISMATCH: ReasonText(
        "a comparison found rows that are missing, extra or changed",
        "nothing at first: a repair is queued, and the next comparison closes it; "
        "scm-sync reconcile --repo SPEC --no-repair names them",
    ),
    HealthReason.UNREPAIRED: ReasonText(
        "three repairs did not remove a difference",
        "look at scm.discrepancies, quarantine and triggers on our tables; fix the cause, then: "
        "scm-sync reconcile --repo SPEC --repair",
    ),
    HealthReason.REGRESSED: ReasonText(
        "a visit returned fewer fields than are stored",
        "restore the rights of the user that reads the source; nothing stored was changed",
    ),
}
"""Every reason, in the order of the page."""


BLOCKERS: Mapping[str, ReasonText] = {
    "paused": ReasonText(
        "somebody has paused it",
        "scm-sync admin pauses lists the pauses, scm-sync admin resume ID ends one",
    ),
    "breaker_open": ReasonText(
        "a circuit breaker is open: too many runs of its server or tenant failed",
        "fix the cause of the failures; the breaker probes by itself, or: scm-sync admin breaker-reset",
    ),
    "half_open": ReasonText(
        "a circuit breaker lets single probes through to find out whether it may close",
        "nothing; it closes by itself when the probes succeed",
    ),
    "rate_limited": ReasonText(
        "no request is sent to the server for a while",
        "wait, or see: scm-sync admin limits list",
    ),
    "waits_for_retry": ReasonText(
        "live syncing failed and is tried again later",
        "nothing; it is tried again by itself, or: scm-sync runner incremental --repo SPEC",
    ),
    "unserved": ReasonText(
        "no running worker pool accepts it",
        "start a pool that accepts it, or widen an allowlist (SCM_WORKER_..._ALLOWLIST)",
    ),
    "silent": ReasonText(
        "a sensor, schedule or loop misses its ticks",
        "start scm-sync up, or the loop; to drop a removed sensor: scm-sync health --forget NAME",
    ),
}
"""Reasons why jobs are not started, although the copy may still be healthy, in the order of the page."""


def remedy(reason: HealthReason | str, spec: str = "SPEC") -> str:
    """The remedy for ``reason``, with the commands for the repository ``spec``."""
    return (BLOCKERS.get(str(reason)) or CATALOGUE[HealthReason(reason)]).remedy_of(spec)


def remedies(reasons: Iterable[HealthReason | str], spec: str = "SPEC") -> dict[str, str]:
    """The remedy for each of ``reasons``, by its name. While the source cannot be read, nothing else helps
    against what follows from that: there the remedy names the reason to remove first."""
    names = [str(reason) for reason in reasons]
    blocker = next((str(one) for one in _NO_ACCESS if str(one) in names), None)
    return {
        name: f"first remove the reason {blocker}"
        if blocker is not None and name in _FOLLOWS_FROM_NO_ACCESS
        else remedy(name, spec)
        for name in names
    }


def table(entries: Mapping[str, ReasonText] | Mapping[HealthReason, ReasonText]) -> str:
    """One of the two catalogues above as a Markdown table of ``docs/health.md``."""
    lines = ["| reason | meaning | what to do |", "|---|---|---|"]
    lines += [
        f"| {reason} | {entry.meaning} | {entry.remedy_of('SPEC')} |" for reason, entry in entries.items()
    ]
    return "\n".join(lines) + "\n"
