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


class Reason(StrEnum):
    """A reason why a (repository, job type) is not healthy."""

    NEVER_SYNCED = "never_synced"
    STALE = "stale"
    GAP = "gap"
    INCOMPLETE = "incomplete"
    FAILED_WINDOW = "failed_window"
    QUARANTINE = "quarantine"
    DEFERRED_FETCH = "obligation"
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


WAITS_FOR_ITSELF = frozenset({Reason.NEVER_SYNCED, Reason.INCOMPLETE, Reason.MISMATCH})
"""Reasons that go away without a person, as queued history is read and what differs is repaired."""

_NO_ACCESS = (
    Reason.CREDENTIAL,
    Reason.DENIED,
    Reason.GONE,
    Reason.REPLACED,
    Reason.MOVED,
    Reason.LOGIN_PAGE,
    Reason.UNREACHABLE,
)
_FOLLOWS_FROM_NO_ACCESS = frozenset(
    {Reason.NEVER_SYNCED, Reason.INCOMPLETE, Reason.STALE, Reason.GAP, Reason.FAILED_WINDOW}
)

PASSES = frozenset({Reason.DISABLED})
"""Reasons that are reported and are no defect."""


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
        return f"SVN: {self.svn}; GitLab: {self.gitlab}".replace("SPEC", spec)


CATALOGUE: Mapping[Reason, ReasonText] = {
    Reason.NEVER_SYNCED: ReasonText(
        "no look at the source has been complete yet",
        "wait for the scheduler, or: scm-sync runner incremental --repo SPEC",
    ),
    Reason.INCOMPLETE: ReasonText(
        "history is queued and waits to be read",
        "wait while scm-sync up reads it, or: scm-sync runner backfill --repo SPEC",
    ),
    Reason.STALE: ReasonText(
        "the last complete look is older than stale_after_seconds",
        "scm-sync status names what is silent, paused or held back; start scm-sync up if it does not run",
    ),
    Reason.GAP: ReasonText(
        "revisions or days are not covered and no job will read them",
        "scm-sync runner backfill --repo SPEC reads exactly what is missing",
    ),
    Reason.FAILED_WINDOW: ReasonText(
        "a job is dead: its attempts are used up or the error was permanent",
        "remove the cause that the error names, then: scm-sync runner backfill --repo SPEC",
    ),
    Reason.UNREACHABLE: ReasonText(
        "the server of the source does not answer, or not in a usable way",
        "start the server or correct its address, then: scm-sync doctor; syncing goes on by itself",
    ),
    Reason.LOGIN_PAGE: ReasonText(
        "a page for people answers in place of the source: a login or error page of a proxy",
        "correct the URL or the proxy (SCM_GITLAB_URL, HTTPS_PROXY, NO_PROXY), then: scm-sync doctor",
    ),
    Reason.CREDENTIAL: ReasonText(
        "the server refuses the token in force (expired, revoked, wrong or without the scope), or there is "
        "none for it",
        "create a token with scope read_api and set it (SCM_GITLAB_TOKEN, or its file); it counts at once",
    ),
    Reason.DENIED: ReasonText(
        "the source refuses us",
        svn="correct SCM_SVN_USERNAME and SCM_SVN_PASSWORD, or the rights on the server, then: "
        "scm-sync runner incremental --repo SPEC",
        gitlab="give the token's user at least the role Reporter, then: "
        "scm-sync runner incremental --repo SPEC",
    ),
    Reason.DISABLED: ReasonText(
        "green: the project has the feature switched off (repository, or merge requests)",
        "nothing; it is looked at every hour, and its history waits until it is switched on",
    ),
    Reason.MOVED: ReasonText(
        "the server says that the source has another address now",
        svn="scm-sync repo relocate SPEC URL --reason ... keeps what is stored",
        gitlab="correct the URL of the server (SCM_GITLAB_URL)",
    ),
    Reason.GONE: ReasonText(
        "nothing answers at the address, more than once",
        svn="scm-sync repo relocate SPEC URL --reason ... if it has another address now; else: "
        "scm-sync repo retire SPEC --reason ...",
        gitlab="give the token's user access to the project; if it is deleted: "
        "scm-sync repo retire SPEC --reason ...",
    ),
    Reason.REPLACED: ReasonText(
        "another repository answers at the address",
        "see docs/decisions/replaced-repositories.md; when the old one is back: "
        "scm-sync runner incremental --repo SPEC",
    ),
    Reason.QUARANTINE: ReasonText(
        "rows could not be stored",
        "scm-sync admin quarantine list --repo SPEC; mend the cause, then: "
        "scm-sync admin quarantine retry --repo SPEC",
    ),
    Reason.DEFERRED_FETCH: ReasonText(
        "a detail could not be read yet",
        "nothing at first: it is retried by itself; scm.deferred_fetches has the error",
    ),
    Reason.UNREADABLE: ReasonText(
        "the server refuses a kind of detail (approvals, versions, ...) for every merge request of the "
        "project; green where it does not have such details at all",
        "give the token's user the right to see it, or nothing: it is tried again once a day, and at once "
        "with another token; scm.unreadable_details has the error",
    ),
    Reason.MISMATCH: ReasonText(
        "a comparison found rows that are missing, extra or changed",
        "nothing at first: a repair is queued, and the next comparison closes it; "
        "scm-sync reconcile --repo SPEC --no-repair names them",
    ),
    Reason.UNREPAIRED: ReasonText(
        "three repairs did not heal a difference",
        "look at scm.discrepancies, quarantine and triggers on our tables; mend the cause, then: "
        "scm-sync reconcile --repo SPEC --repair",
    ),
    Reason.REGRESSED: ReasonText(
        "a look saw less than is stored",
        "give our account on the server its rights back; nothing stored was changed",
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
        "mend what the runs failed of; it probes by itself, or: scm-sync admin breaker-reset",
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
        "no living worker pool takes it",
        "start the pool that takes it, or widen an allowlist (SCM_WORKER_..._ALLOWLIST)",
    ),
    "silent": ReasonText(
        "a sensor, schedule or loop misses its ticks",
        "start scm-sync up, or the loop; what will never tick again: scm-sync health --forget NAME",
    ),
}
"""Reasons why jobs are not started, although the copy may still be healthy, in the order of the page."""


def remedy(reason: Reason | str, spec: str = "SPEC") -> str:
    """The remedy for ``reason``, with the commands for the repository ``spec``."""
    return (BLOCKERS.get(str(reason)) or CATALOGUE[Reason(reason)]).remedy_of(spec)


def remedies(reasons: Iterable[Reason | str], spec: str = "SPEC") -> dict[str, str]:
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


def table() -> str:
    """The catalogue as the Markdown table of ``docs/health.md``."""
    return _table(CATALOGUE)


def blockers_table() -> str:
    """Reasons why jobs are not started, as the second table of ``docs/health.md``."""
    return _table(BLOCKERS)


def _table(entries: Mapping[str, ReasonText] | Mapping[Reason, ReasonText]) -> str:
    lines = ["| reason | meaning | what to do |", "|---|---|---|"]
    lines += [
        f"| {reason} | {entry.meaning} | {entry.remedy_of('SPEC')} |" for reason, entry in entries.items()
    ]
    return "\n".join(lines) + "\n"
