"""The Subversion repositories of the demo: two with the history of a team, one with everything odd.

Belongs here: the repositories, their histories, and the message that is edited after the first sync.
:mod:`sync_pipeline_sandbox.svn_samples` makes a repository from a history.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from sync_pipeline_sandbox import svn_samples
from sync_pipeline_sandbox.dumps import DumpWriter
from sync_pipeline_sandbox.people import TEAM


@dataclass(frozen=True, slots=True)
class Edit:
    """A log message that is edited after the commit."""

    repository: str
    revision: int
    before: str
    after: str


EDIT = Edit(
    "atlas",
    396,
    "Correct the scale of sheet 12",
    "Correct the scale of sheet 21\n\nThe first message named the wrong sheet.",
)
"""Among the newest revisions, which each visit reads again."""

_SUBJECTS = (
    "Correct the colours of sheet {n}",
    "Add the missing labels of sheet {n}",
    "Simplify the borders of sheet {n}",
    "Update the sources of sheet {n}",
    "Fix the legend of sheet {n}",
    "Check sheet {n} against the survey",
)
_BULK_FILES = 120
_SHEETS = 60

NAMES = ("paint", "atlas", "odds")
"""The repositories; the first one is longer than a block of revisions."""


def create(folder: Path, anchor: datetime, *, edited: bool) -> Mapping[str, str]:
    """Make the repositories below ``folder`` that are not there, whose histories end at ``anchor`` (UTC);
    returns their URLs by name. ``edited`` says which message :data:`EDIT` has then."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in zip(NAMES, (_paint, _atlas, _odds), strict=True):
        path = folder / name
        if not path.exists():
            # A demo that is killed here leaves no half of a repository under the name.
            making = folder / f"{name}.making"
            shutil.rmtree(making, ignore_errors=True)
            make(making, anchor)
            making.rename(path)
    edit(folder, edited=edited)
    return {name: (folder / name).resolve().as_uri() for name in NAMES}


def edit(folder: Path, *, edited: bool) -> None:
    """Give the revision of :data:`EDIT` one of its two messages."""
    svn_samples.set_message(folder / EDIT.repository, EDIT.revision, EDIT.after if edited else EDIT.before)


@dataclass(frozen=True, slots=True)
class _Revision:
    number: int
    author: str
    date: str
    message: str
    files: tuple[str, ...]


def _paint(path: Path, anchor: datetime) -> None:
    svn_samples.write(
        path,
        (
            (one.files, one.message, one.author, one.date)
            for one in _revisions(1250, anchor, days=720, bulk=1175)
        ),
    )


def _atlas(path: Path, anchor: datetime) -> None:
    """Also with tags."""
    writer = DumpWriter()
    made: set[str] = set()
    for one in _revisions(400, anchor, days=120, bulk=310):
        writer.revision(EDIT.before if one.number == EDIT.revision else one.message, one.author, one.date)
        if one.number == 1:
            for name in ("trunk", "branches", "tags", "survey"):
                writer.directory(name)
        elif one.number % 100 == 0:
            writer.node(f"tags/v{one.number}", kind="dir", copyfrom=(one.number - 1, "trunk"))
            continue
        for name in one.files:
            writer.node(name, "change" if name in made else "add", text=f"{one.number}\n")
            made.add(name)
    svn_samples.create(path, writer.dump())


def _odds(path: Path, anchor: datetime) -> None:
    svn_samples.create(path, svn_samples.odd())


def _revisions(count: int, anchor: datetime, *, days: int, bulk: int) -> Iterator[_Revision]:
    """``count`` commits by the whole team over the ``days`` before ``anchor``; the revision ``bulk`` changes
    more files than a person edits."""
    step = timedelta(days=days) / count
    for number in range(1, count + 1):
        message = _SUBJECTS[number % len(_SUBJECTS)].format(n=number * 7 % _SHEETS)
        files = [f"trunk/sheet{(number * 7 + index) % _SHEETS:02d}.txt" for index in range(1 + number % 4)]
        if number == bulk:
            message = "Import the drawings of the survey"
            files = [f"survey/drawing{index:03d}.txt" for index in range(_BULK_FILES)]
        moment = anchor - step * (count - number + 0.5)
        yield _Revision(
            number,
            TEAM[(number * number + number // 7) % len(TEAM)].svn,
            moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            message,
            tuple(files),
        )
