"""What a reader of revisions must see, worked out from ``svnadmin dump`` by the independent parser.

Belongs here: folding node records into changed paths, and comparing. Does not belong here: single tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sync_pipeline.core.model import RevisionRow
from sync_pipeline_tests.dumpfile import DumpRevision, Node, parse
from sync_pipeline_tests.svn_fixtures import SvnRepository

ACTIONS = {"add": "A", "delete": "D", "change": "M", "replace": "R"}


@dataclass(frozen=True)
class TruePath:
    """One changed path as the dump has it; ``text`` and ``props`` are None where a dump does not tell."""

    path: str
    action: str
    kind: str
    copyfrom: tuple[str, int] | None
    text: bool | None
    props: bool | None


def truth(repository: SvnRepository) -> list[tuple[DumpRevision, list[TruePath]]]:
    """Every revision but 0 with its changed paths, sorted by path."""
    trees: list[dict[str, str]] = []
    result = []
    for revision in parse(repository.dump()):
        tree = dict(trees[-1]) if trees else {}
        changes: dict[str, TruePath] = {}
        for node in revision.nodes:
            path = "/" + node.path
            change = _change(path, node, tree, changes.get(path))
            _apply(path, node, tree, trees)
            changes[path] = change
        trees.append(tree)
        if revision.number:
            result.append((revision, [changes[path] for path in sorted(changes)]))
    return result


def _change(path: str, node: Node, tree: dict[str, str], before: TruePath | None) -> TruePath:
    action = ACTIONS[node.action]
    kind = node.kind or ("dir" if path == "/" else tree[path])
    if action == "A" and before is not None and before.action == "D":
        action = "R"
    copied = node.copyfrom_path is not None
    source = ("/" + str(node.copyfrom_path), int(node.copyfrom_rev or 0)) if copied else None
    if action == "D":
        return TruePath(path, action, kind, None, False, False)
    if action == "M" or copied:
        # A dump of a copy repeats text and properties although only one of them was changed.
        known = None if copied and (node.text is not None or node.props is not None) else True
        text = (node.text is not None) and known
        return TruePath(path, action, kind, source, text, (node.props is not None) and known)
    return TruePath(path, action, kind, None, kind == "file" and node.text is not None, bool(node.props))


def _apply(path: str, node: Node, tree: dict[str, str], trees: list[dict[str, str]]) -> None:
    if node.action in ("delete", "replace"):
        for gone in [name for name in tree if name == path or name.startswith(path + "/")]:
            del tree[gone]
    if node.action in ("add", "replace"):
        tree[path] = str(node.kind)
        if node.copyfrom_path is not None:
            origin = "/" + node.copyfrom_path
            for name, kind in trees[int(node.copyfrom_rev or 0)].items():
                if name.startswith(origin + "/"):
                    tree[path + name[len(origin) :]] = kind


def assert_equal(rows: list[RevisionRow], repository: SvnRepository) -> None:
    """Fail unless ``rows`` are exactly what the repository holds."""
    expected = truth(repository)
    assert [row.rev_num for row in rows] == [revision.number for revision, _ in expected]
    for row, (revision, changes) in zip(rows, expected, strict=True):
        assert row.author_raw == revision.text_of("svn:author"), row.rev_num
        assert row.message == revision.text_of("svn:log"), row.rev_num
        date = revision.text_of("svn:date")
        shown = None if row.ts is None else row.ts.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        assert shown == date, row.rev_num
        seen = sorted(row.paths, key=lambda change: change.path)
        assert [(p.path, p.action, p.kind) for p in seen] == [(c.path, c.action, c.kind) for c in changes]
        for path, change in zip(seen, changes, strict=True):
            source: Any = None if path.copyfrom_path is None else (path.copyfrom_path, path.copyfrom_rev)
            assert source == change.copyfrom, (row.rev_num, path)
            assert change.text in (None, path.text_mods), (row.rev_num, path)
            assert change.props in (None, path.prop_mods), (row.rev_num, path)
