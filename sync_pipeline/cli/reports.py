"""How the reports of ``scm-sync doctor``, ``status``, ``completeness`` and ``admin verify`` look to a person.

Belongs here: rows, lines and colours made from their documents. Does not belong here: commands and options
(:mod:`sync_pipeline.cli.installation`, :mod:`sync_pipeline.cli.admin`), and what is in a document.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sync_pipeline.cli import output
from sync_pipeline.cli.output import cell
from sync_pipeline.core.formatting import age, counted, failed_starts, moment, requests_and_time, second

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table
    from rich.text import Text

Row = dict[str, object]

_COLOURS = {
    "ok": "green",
    "healthy": "green",
    "warning": "yellow",
    "waiting": "yellow",
    "failed": "bold red",
    "unhealthy": "bold red",
    "skipped": "dim",
}
_EXPLAINED = 20
# Columns of a terminal from which on a table can be read.
_WIDE = 140


# runner -------------------------------------------------------------------------------------------------


def finish_runner(document: Mapping[str, Any], as_json: bool, round_at: datetime | None = None) -> int:
    """Print what the runner did, a line per job, and return its exit code; its errors go to stderr.
    ``round_at`` is when a round of a loop ended: it stands before the lines, and a document is one line."""
    jobs = document.get("jobs", [document])
    when = f"{round_at:%Y-%m-%dT%H:%M:%SZ} " if round_at is not None else ""

    def show(_: object) -> None:
        for one in jobs:
            what = f"{when}{one['repo']} {one['job']} {one['phase']}: {one['status']}"
            if "total_chunks" in one:
                what += f", {one['success_chunks']} of {one['total_chunks']} chunks"
            output.print_line(f"{what}; {one['message']}", flush=round_at is not None)

    code = output.print_document(document, as_json, show, in_line=round_at is not None)
    for one in jobs:
        if one["exit_code"] and one["error"]:
            output.print_message(f"{one['repo']} {one['job']}: {one['error']}")
    return code


# doctor -------------------------------------------------------------------------------------------------


def doctor_rows(document: Mapping[str, Any]) -> list[Row]:
    """One row per finding, for plain lines."""
    columns = ("state", "check", "subject", "seen", "remedy")
    return [{name: check[name] for name in columns} for check in document["checks"]]


def doctor_table(document: Mapping[str, Any]) -> Table:
    """The findings for a terminal, the remedy below what was seen."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    for style in ("", "bold", ""):
        table.add_column(style=style, overflow="fold")
    for checks in _alike(document["checks"]):
        check, state = checks[0], checks[0]["state"]
        about = cell(f"{check['subject']}: " if check["subject"] else "", "cyan")
        about.append(cell(check["seen"], "dim" if state == "skipped" else "default"))
        if check["remedy"]:
            about.append("\n").append(cell(f"→ {check['remedy']}", _COLOURS[state]))
        names = "\n".join(one["check"] for one in checks)
        table.add_row(cell(state, _COLOURS[state]), names, about)
    return table


def _alike(checks: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """The findings, those together that were skipped for one reason."""
    found: dict[object, list[Mapping[str, Any]]] = {}
    for number, check in enumerate(checks):
        skipped = check["state"] == "skipped"
        key = (check["subject"], check["seen"]) if skipped else number
        found.setdefault(key, []).append(check)
    return list(found.values())


def doctor_summary(document: Mapping[str, Any]) -> str:
    """How many checks there were of each state."""
    return ", ".join(f"{number} {state}" for state, number in document["counts"].items() if number)


# status -------------------------------------------------------------------------------------------------

_KINDS = {"gitlab": "GitLab", "svn": "SVN"}
MAX_LISTED = 50
"""How many assets a terminal lists: the summary of the servers stays in sight."""


def server_rows(document: Mapping[str, Any]) -> list[Row]:
    """One row per server, for plain lines."""
    return [
        {
            "server": one["instance"],
            "kind": one["kind"],
            "repositories": one["repositories"],
            "assets": one["assets"]["total"],
            "ok": one["assets"]["healthy"],
            **{name: one["assets"][name] for name in ("waiting", "unhealthy", "late", "with_gaps")},
            "access": _numbers(one["access"]) if one["access"] else "ok",
            "lag": _longest_lag(one),
            **{f"jobs_{state}": one["jobs"][state] for state in ("waiting", "running", "dead")},
            "held_back": ", ".join(_blocked_assets(one)),
            **{f"until_{level}": _left(one["estimate"], level) for level in ("usable", "complete")},
            "credential": one["credential"],
        }
        for one in document["servers"]
    ]


def server_summary(document: Mapping[str, Any]) -> Group:
    """The same for a terminal of any width: a few lines for each server."""
    from rich.console import Group
    from rich.padding import Padding

    lines: list[RenderableType] = []
    for one in document["servers"]:
        name = cell(one["instance"], "bold")
        assets = counted(one["assets"]["total"], "asset")
        repositories = counted(one["repositories"], "repository", "repositories")
        lines.append(name.append(cell(f" ({_KINDS[one['kind']]}): {assets} of {repositories}")))
        more = [_assets_line(one), _jobs_line(one)]
        if estimate := _estimate_line(one["estimate"]):
            more.append(cell(estimate))
        lines += [Padding(line, (0, 0, 0, 2)) for line in more]
    return Group(*lines)


def _left(estimate: Mapping[str, Any] | None, level: str) -> str:
    """The requests and the time until a level; empty for nothing."""
    if estimate is None or not estimate[level]["requests"]:
        return ""
    left = estimate[level]
    return requests_and_time(left["requests"], left["seconds"])


def _estimate_line(estimate: Mapping[str, Any] | None) -> str:
    """The requests and the time that are left of a server, in one line; empty for nothing."""
    if estimate is None:
        return ""
    parts = [
        f"until {level}: about {left}" for level in ("usable", "complete") if (left := _left(estimate, level))
    ]
    if estimate["unknown"]:
        some = counted(estimate["unknown"], "asset")
        parts.append(f"until usable and complete: not known yet for {some} without a stored merge request")
    return "; ".join(parts)


def _assets_line(one: Mapping[str, Any]) -> Text:
    assets = one["assets"]
    states = (("healthy", "ok"), ("waiting", "waiting for history"), ("unhealthy", "unhealthy"))
    line = cell("")
    for verdict, words in states:
        if number := assets[verdict]:
            line.append(cell(", " if line else ""))
            line.append(cell(f"{number:,} {words}", _COLOURS[verdict]))
    why = {"late": assets["late"], "with gaps": assets["with_gaps"]}
    why |= {state.replace("_", " "): number for state, number in one["access"].items()}
    causes = f"; {_numbers(why)}" if any(why.values()) else ""
    return line.append(cell(f"{causes}; lag {_longest_lag(one)}"))


def _jobs_line(one: Mapping[str, Any]) -> Text:
    line = cell(f"jobs: {_numbers(one['jobs'])}")
    for word in _blocked_assets(one):
        line.append(cell("; ")).append(cell(word, _COLOURS["unhealthy"]))
    if one["credential"]:
        line.append(cell(f"; credential from {one['credential']}"))
    elif one["kind"] == "gitlab":
        line.append(cell("; no credential in this shell"))
    return line


def _longest_lag(one: Mapping[str, Any]) -> str:
    never = one["assets"]["never_complete"]
    lag = "never covered" if one["lag_seconds"] is None else age(one["lag_seconds"])
    return f"{lag}, {never:,} never covered" if never and one["lag_seconds"] is not None else lag


def _blocked_assets(one: Mapping[str, Any]) -> list[str]:
    breaker = [f"breaker {one['breaker'].replace('_', ' ')}"] if one["breaker"] else []
    return breaker + ["paused"] * one["paused"]


def status_rows(document: Mapping[str, Any]) -> list[Row]:
    """One row per (repository, job type), for plain lines, with everything in it."""
    several = _several_instances(document)
    return [
        {
            "state": asset["verdict"],
            "repository": asset["path"],
            **({"instance": asset["instance"]} if several else {}),
            "job_type": asset["job_type"],
            "covered": _covered(asset),
            "watermark": asset["watermark"],
            "fresh": _lag(asset),
            "gaps": _extent(asset["gaps"]),
            "queued": _extent(asset["queued"]),
            "level": asset["level"] or "",
            "planned_fetches": asset["planned_fetches"],
            "until_complete": _left(asset["estimate"], "complete"),
            "last_run": _last_run(asset["last_run"]),
            "running": ", ".join(_at_work(one, document["generated_at"]) for one in asset["running"]),
            "access": asset["access"]["state"],
            "reasons": "; ".join(f"{name}: {line}" for name, line in asset["reasons"].items()),
            "held_back": "; ".join(f"{name}: {line}" for name, line in asset["held_back"].items()),
            "remedies": "; ".join(f"{name}: {line}" for name, line in asset["remedies"].items()),
        }
        for asset in document["units"]
    ]


def status_table(document: Mapping[str, Any], width: int) -> Table:
    """The same for a terminal of ``width`` columns, in fewer words; the reasons are explained below it. A
    narrow one has two lines for each (repository, job type) in place of the columns."""
    from rich.table import Table

    if width < _WIDE:
        return _narrow_table(document)
    where = ["instance"] if _several_instances(document) else []
    table = Table()
    columns = ("covered", "fresh", "missing", "last run", "reasons")
    for name in ("state", "repository", *where, "job type", *columns):
        table.add_column(name, overflow="fold")
    for asset in document["units"][:MAX_LISTED]:
        verdict, run = asset["verdict"], asset["last_run"]
        table.add_row(
            cell(verdict, _COLOURS[verdict]),
            cell(asset["path"]),
            *(cell(asset[name]) for name in where),
            cell(asset["job_type"]),
            cell(_covered(asset)),
            cell(_lag(asset)),
            cell(_missing(asset)),
            cell(_run_in_short(run)),
            cell(_reasons_in_short(asset)),
        )
    return table


def _narrow_table(document: Mapping[str, Any]) -> Table:
    from rich.table import Table

    several = _several_instances(document)
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for asset in document["units"][:MAX_LISTED]:
        colour = _COLOURS[asset["verdict"]]
        about = cell(asset["path"], "bold")
        about.append(cell(f" on {asset['instance']}" if several else "")).append(
            cell(f" {asset['job_type']}")
        )
        about.append("\n").append(cell(f"{_covered(asset)}; fresh {_lag(asset)}"))
        for more in (_missing(asset), f"last run {_run_in_short(asset['last_run'])}"):
            about.append(cell(f"; {more}" if more else ""))
        if reasons := _reasons_in_short(asset):
            about.append(cell("; ")).append(cell(reasons, colour))
        table.add_row(cell(asset["verdict"], colour), about)
    return table


def status_left_out(document: Mapping[str, Any]) -> Iterator[str]:
    """How many assets a terminal does not list."""
    assets = document["units"][MAX_LISTED:]
    if assets:
        states = Counter(asset["verdict"] for asset in assets)
        yield (
            f"and {counted(len(assets), 'more asset')} ({_numbers(states)}); --repo SPEC shows those of one "
            "repository, scm-sync status | cat all of them"
        )


def _run_in_short(run: Mapping[str, Any] | None) -> str:
    return "none" if run is None else f"{moment(run['started_at'])} {run['status']}"


def _reasons_in_short(asset: Mapping[str, Any]) -> str:
    words = {"usable": f"usable ({asset['planned_fetches']:,} planned)"}
    return ", ".join(words.get(name, name) for name in (*asset["reasons"], *asset["held_back"]))


def status_levels(document: Mapping[str, Any]) -> Iterator[str]:
    """One line about the assets of the level usable, with the number of their planned fetches."""
    waiting = [asset["planned_fetches"] for asset in document["units"] if "usable" in asset["reasons"]]
    if waiting:
        yield (
            f"usable, not complete: {counted(len(waiting), 'asset')}. The covered rows have notes, approvers "
            f"and reviewers; {counted(sum(waiting), 'planned fetch', 'planned fetches')} of other details "
            "will be done while nothing more urgent waits"
        )


def status_explanations(document: Mapping[str, Any]) -> Iterator[str]:
    """The reasons in full of those that need a person, the worst ones first."""
    unhealthy = [asset for asset in document["units"] if asset["verdict"] == "unhealthy"]
    for asset in unhealthy[:_EXPLAINED]:
        for reason, line in asset["reasons"].items():
            yield f"{asset['path']} {asset['job_type']}: {reason}: {line}"
            if reason in asset["remedies"]:
                yield f"  → {asset['remedies'][reason]}"
    if len(unhealthy) > _EXPLAINED:
        yield f"and {len(unhealthy) - _EXPLAINED} more; scm-sync status --json has every reason"


def status_running(document: Mapping[str, Any]) -> Iterator[str]:
    """The jobs at work, each with its worker and for how long."""
    found = [
        f"at work: {asset['path']} {asset['job_type']}: {_at_work(one, document['generated_at'])}"
        for asset in document["units"]
        for one in asset["running"]
    ]
    yield from _first_lines(found, "more at work; see: scm-sync admin jobs list --status running")


def _first_lines(lines: Sequence[str], more: str) -> Iterator[str]:
    yield from lines[:_EXPLAINED]
    if len(lines) > _EXPLAINED:
        yield f"and {len(lines) - _EXPLAINED} {more}"


def _at_work(one: Mapping[str, Any], now: str) -> str:
    seconds = (datetime.fromisoformat(now) - datetime.fromisoformat(one["since"])).total_seconds()
    words = f"{one['mode']} for {age(max(0.0, seconds))} by {one['worker']}"
    return words + (", whose claim has run out" if one["claim_ran_out"] else "")


def status_obstacles(document: Mapping[str, Any]) -> Iterator[str]:
    """The switches that are off, the pauses, the breakers that are not closed, and the due work."""
    for name, what in document["switched_off"].items():
        yield f"switched off: {name} is false: {what}"
    for one in document["pauses"]:
        end = f"until {second(one['until'])} UTC" if one["until"] else "until it is resumed"
        yield f"pause {one['id']}: {pause_subject(one)} {end} ({one['actor']}: {_line(one['reason'])})"
    for one in document["breakers"]:
        name = f"breaker {one['scope']} {one['key']}".rstrip()
        state = str(one["state"]).replace("_", " ")
        why = _line(one["reason"] or "no reason given")
        yield f"{name}: {state} since {second(one['since'])} UTC: {why}"
    due = document["due"]
    if due["count"]:
        notes = ", ".join(
            f"{number:,} {what}"
            for number, what in (
                (due["never_visited"], "never visited"),
                (due["held_back"], "held back: paused, refused or to be retried"),
            )
            if number
        )
        yield (
            f"due and not started: {due['count']:,}{f' ({notes})' if notes else ''}, the longest not visited "
            f"for {age(due['longest_seconds'])}; scm-sync scheduler --dry-run says why"
        )
    if not due["interval_kept"]:
        yield (
            f"sync_interval_seconds ({age(due['interval_seconds'])}) is not kept, although nothing holds "
            "most visits back; docs/playbooks.md says what helps against a backlog"
        )


def pause_subject(pause: Mapping[str, Any]) -> str:
    """The subject of a pause: everything, a server, a tenant or a repository, or one job type of it."""
    name = pause["repo"] or pause["instance"] or pause["tenant"]
    subject = "everything" if name is None else f"{pause['scope']} {name}"
    return subject if pause["job"] is None else f"{pause['job']} of {subject}"


def _line(text: str) -> str:
    return " ".join(text.split())


def status_limits(document: Mapping[str, Any]) -> Iterator[str]:
    """The servers that are asked less or more than at the start, and why."""
    for one in document["limits"]:
        kind = "" if one["endpoint_class"] in ("all", "svn") else f" for {one['endpoint_class']}"
        usual, reason = one["full_rate"], one["rate_reason"] or one["reason"]
        instead = f"instead of {usual:g}" if usual > one["rate"] else "after a refusal"
        if not one["lowered"]:
            instead = f"({usual:g} at the start, at most {one['max_rate']:g})"
        what = f"{one['rate']:g} requests a second {instead}"
        if one["paused"]:
            what, reason = f"no request until {second(one['paused_until'])} UTC", one["reason"]
        yield f"{one['instance']}{kind}: {what}" + (f": {reason}" if reason else "")


def status_liveness(document: Mapping[str, Any]) -> Iterator[str]:
    """Running pools, where there is more than the usual one, and assets that no pool serves."""
    pools = document["pools"]
    if len(pools) > 1 or any(pool["name"] != "default" or _takes(pool) for pool in pools):
        for pool in pools:
            yield f"worker pool {pool['name']}: {_takes(pool) or 'everything'}"
    unserved = [
        f"no running worker pool accepts {one['spec']} {one['job_type']} ({one['instance']}, {one['tenant']})"
        for one in document["unserved"]
    ]
    yield from _first_lines(unserved, "more; scm-sync status --json has all of them")
    for one in document["silent"]:
        often = age(one["every_seconds"])
        yield f"{one['name']} is silent for {age(one['age_seconds'])}; a tick is due every {often}"
    for line in document["slow"]:
        yield f"scm-sync up is slow: {line}"
    starts = document["run_starts"]
    if starts is not None and starts["failed"]:
        yield failed_starts(starts["runs"], starts["failed"], starts["reason"])


def _takes(pool: Mapping[str, Any]) -> str:
    lists = (("instances", "of"), ("tenants", "of tenants"), ("job_types", "only"))
    return "; ".join(f"{word} {', '.join(pool[name])}" for name, word in lists if pool[name])


def status_summary(document: Mapping[str, Any]) -> str:
    """The fleet in one line."""
    summary = document["summary"]
    retired = summary["retired_repositories"]
    parts = [
        counted(summary["repositories"], "repository", "repositories")
        + (f" and {retired:,} retired" if retired else ""),
        "assets: " + _numbers(summary["units"]),
        "jobs: " + _numbers(summary["jobs"]),
    ]
    return "; ".join(parts)


def _several_instances(document: Mapping[str, Any]) -> bool:
    """True if each line has to name the server."""
    return len({asset["instance"] for asset in document["units"]}) > 1


def _numbers(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} {name}" for name, number in counts.items() if number) or "none"


def _covered(asset: Mapping[str, Any]) -> str:
    """The range with the origin, and ranges that are covered apart from it."""
    covered, apart = asset["covered"], asset["covered_apart"]
    if not apart["windows"]:
        return "nothing yet" if covered is None else _range(covered)
    others = _windows(apart["first"], apart["windows"])
    if covered is not None:
        return f"{_range(covered)}, and apart {others}"
    origin = asset["origin"]
    return f"{others}, not yet the origin {f'r{origin}' if isinstance(origin, int) else moment(origin)}"


def _range(covered: Mapping[str, Any]) -> str:
    first, last = covered["from"], covered["to"]
    if isinstance(last, int):
        return f"r{first} to r{last}"
    return f"{'the beginning' if first is None else moment(first)} to {moment(last)}"


def _lag(asset: Mapping[str, Any]) -> str:
    """How long ago the copy was last covered up to now, and how far a watermark is behind HEAD."""
    lag = "never" if asset["lag_seconds"] is None else f"{age(asset['lag_seconds'])} ago"
    behind = asset["revisions_behind"]
    return f"{lag}, {counted(behind, 'revision')} behind HEAD" if behind else lag


def _missing(asset: Mapping[str, Any]) -> str:
    """How many windows are missing, with and without a job that will read them."""
    gaps, queued = asset["gaps"]["windows"], asset["queued"]["windows"]
    return ", ".join([counted(gaps, "gap")] * bool(gaps) + [f"{queued:,} queued"] * bool(queued))


def _extent(extent: Mapping[str, Any]) -> str:
    """Windows, how much they are, and the first one."""
    if not extent["windows"]:
        return ""
    what = counted(extent["windows"], "window")
    if extent["revisions"]:
        what += f", {counted(extent['revisions'], 'revision')}"
    elif extent["seconds"]:
        what += f", {age(extent['seconds'])}"
    return f"{what}: {_windows(extent['first'], extent['windows'])}"


def _windows(windows: Sequence[Mapping[str, Any]], total: int) -> str:
    shown = [
        f"r{window['start_rev']}..r{window['end_rev']}"
        if "start_rev" in window
        else f"{moment(window['since']) if window['since'] else 'the beginning'} to {moment(window['until'])}"
        for window in windows
    ]
    return ", ".join(shown) + (", ..." if total > len(windows) else "")


def _last_run(run: Mapping[str, Any] | None) -> str:
    if run is None:
        return "none"
    when = moment(run["finished_at"] or run["started_at"])
    if run["error_code"]:
        return f"{when} {run['status']}: {run['error_code']}"
    return (
        f"{when} {run['status']}: {run['read']} read, {run['inserted'] + run['updated']} changed, "
        f"{counted(run['calls'], 'call')}"
    )


# completeness -------------------------------------------------------------------------------------------

_UNREADABLE_SHOWN = 20


def completeness_rows(document: Mapping[str, Any], by: str) -> list[Row]:
    """One row per instance, tenant or job type, and one for all of them, for plain lines."""
    found = [*document[f"{by}s"], {by: "total", **document["total"]}]
    known = ("repositories", "expected", "stored", "missing", "extra", "changed", "deleted")
    unknown = ("denied", "never_read", "hidden", "quarantined", "owed", "planned", "unreadable")
    return [
        {
            by: one[by],
            **{name: one[name] for name in known},
            **{name: one["unknown"][name] for name in unknown},
            "uncovered": one["unknown"]["uncovered"]["units"],
            "uncovered_revisions": one["unknown"]["uncovered"]["revisions"],
            "usable_only": one["levels"]["usable"],
            "complete_until": "" if one["complete_until"] is None else moment(one["complete_until"]),
            "verified": "" if one["verified"]["share"] is None else f"{one['verified']['share']:.0%}",
        }
        for one in found
    ]


def without_zeros(rows: Sequence[Row]) -> list[Row]:
    """``rows`` without the columns that are zero or empty in every one of them."""
    columns = [name for name in rows[0] if any(row[name] for row in rows)]
    return [{name: row[name] for name in columns} for row in rows]


def completeness_table(document: Mapping[str, Any], by: str) -> Table:
    """The same for a terminal, without the columns that are zero in every line."""
    from rich.table import Table

    rows = without_zeros(completeness_rows(document, by))
    table = Table()
    # Without the underscore it would look like a time in the future.
    titles = {"complete_until": "every detail before"}
    for name in rows[0]:
        title = titles.get(name, name.replace("_", " "))
        table.add_column(title, justify="left" if name == by else "right", overflow="fold")
    for row in rows:
        if row is rows[-1]:
            table.add_section()
        table.add_row(*(cell(f"{value:,}" if isinstance(value, int) else value) for value in row.values()))
    return table


def unreadable_lines(document: Mapping[str, Any]) -> Iterator[str]:
    """One line for each detail that a server refuses for every row of a repository."""
    for one in document["unreadable"][:_UNREADABLE_SHOWN]:
        yield f"{one['spec']} {one['job_type']}: {one['text']}"
    left = len(document["unreadable"]) - _UNREADABLE_SHOWN
    if left > 0:
        yield f"{left:,} more are not listed; see --json"


def completeness_summary(document: Mapping[str, Any]) -> str:
    """Whether it is all there, in one line."""
    total, retired = document["total"], document["retired_repositories"]
    left_out = (
        f"; {counted(retired, 'retired repository', 'retired repositories')} left out" if retired else ""
    )
    if not total["units"]:
        return f"no repositories{left_out}"
    share = total["verified"]["share"]
    compared = f"; {share or 0:.0%} of the rows were compared with the sources lately"
    found = f"rows are missing, or parts are not known: {_numbers(_not_complete(total))}"
    if total["complete"]:
        found = "nothing is known to be missing"
    elif _is_usable(total):
        planned = counted(total["unknown"]["planned"], "planned fetch", "planned fetches")
        found = f"usable, not complete: {planned} wait; nothing else is known to be missing"
    return found + compared + left_out


def _is_usable(total: Mapping[str, Any]) -> bool:
    """True if nothing but planned fetches separates it from complete."""
    return not any(number for name, number in _not_complete(total).items() if name != "planned")


def _not_complete(total: Mapping[str, Any]) -> dict[str, int]:
    """A number for each kind of row or detail that is missing or not known, by the names of the columns."""
    uncovered = total["unknown"]["uncovered"]
    return {
        **{name: total[name] for name in ("missing", "extra", "changed")},
        **{name.replace("_", " "): one for name, one in total["unknown"].items() if name != "uncovered"},
        "uncovered": uncovered["units"],
        "uncovered revisions": uncovered["revisions"],
    }


# verify -------------------------------------------------------------------------------------------------


def proof_line(proof: Mapping[str, Any]) -> str:
    """The result of a proof, in one line; the rows that disagree follow."""
    if proof["passed"]:
        return f"{proof['name']}: all is well"
    shown, total = len(proof["rows"]), proof["disagreeing"]
    first = f", the first {shown}" if shown < total else ""
    return f"{proof['name']}: {counted(total, 'row disagrees', 'rows disagree')}{first}: {proof['about']}"


def open_lines(document: Mapping[str, Any]) -> Iterator[str]:
    """The open work, a line each; none of it is a contradiction."""
    for one in document["open"]:
        oldest = f", the oldest for {age(one['oldest_seconds'])}" if one["open"] else ""
        yield f"{one['what']}: {one['open']:,} open{oldest}"
