"""Differences between two trees, from git's text to the rows the API shows.

Belongs here: parsing of ``git diff``. Running git is the repository's business.
"""

from __future__ import annotations

import re
from typing import Any

_HEADER = re.compile(r'diff --git (?P<old>"?a/.*"?) (?P<new>"?b/.*"?)$')
_ESCAPE = re.compile(rb"\\([abtnvfr\"\\]|[0-7]{3})")
_LETTERS = {b"a": 7, b"b": 8, b"t": 9, b"n": 10, b"v": 11, b"f": 12, b"r": 13, b'"': 34, b"\\": 92}


def parse_diff(raw: bytes) -> list[dict[str, Any]]:
    """One row per changed file, in git's order. Binary files have an empty ``diff``."""
    rows = []
    for block in re.split(r"(?m)^(?=diff --git )", raw.decode("utf-8", errors="replace")):
        if block.startswith("diff --git "):
            rows.append(_row(block))
    return rows


def _row(block: str) -> dict[str, Any]:
    head, marker, text = block.partition("\n@@ ")
    facts = {}
    for line in head.splitlines()[1:]:
        for key in (
            "new file mode",
            "deleted file mode",
            "old mode",
            "new mode",
            "rename from",
            "rename to",
            "index",
            "---",
            "+++",
        ):
            if line.startswith(key + " "):
                facts[key] = line.removeprefix(key + " ").rstrip("\t")
    mode = facts["index"].split(" ")[1] if " " in facts.get("index", "") else "0"
    old, new = _names(head.splitlines()[0])
    old = _plain(facts["rename from"]) if "rename from" in facts else old
    new = _plain(facts["rename to"]) if "rename to" in facts else new
    return {
        "diff": f"@@ {text}" if marker else "",
        "collapsed": False,
        "too_large": False,
        "new_path": new,
        "old_path": old,
        "a_mode": "0"
        if "new file mode" in facts
        else facts.get("old mode", facts.get("deleted file mode", mode)),
        "b_mode": "0"
        if "deleted file mode" in facts
        else facts.get("new mode", facts.get("new file mode", mode)),
        "new_file": "new file mode" in facts,
        "renamed_file": "rename from" in facts,
        "deleted_file": "deleted file mode" in facts,
        "generated_file": False,
    }


def _names(line: str) -> tuple[str, str]:
    # Without a rename both names are the same, so the middle of the line is where the second begins.
    rest = line.removeprefix("diff --git ")
    half = len(rest) // 2
    match = _HEADER.match(line)
    if rest[half : half + 1] == " " and _plain(rest[:half])[2:] == _plain(rest[half + 1 :])[2:]:
        return _plain(rest[:half])[2:], _plain(rest[half + 1 :])[2:]
    return (_plain(match["old"])[2:], _plain(match["new"])[2:]) if match else (rest, rest)


def _plain(name: str) -> str:
    """A name without git's quoting."""
    if not (name.startswith('"') and name.endswith('"')):
        return name
    raw = _ESCAPE.sub(
        lambda hit: bytes([_LETTERS[hit[1]] if hit[1] in _LETTERS else int(hit[1], 8)]), name[1:-1].encode()
    )
    return raw.decode("utf-8", errors="replace")
