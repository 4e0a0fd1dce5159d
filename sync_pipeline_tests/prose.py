"""Checks that the texts of the project are plain English. ``./dev lint`` runs it.

Belongs here: the rules, and how sentences are found in Markdown, Python and SQL. Does not belong here:
the words, which are in ``prose.toml``.

Run ``python -m sync_pipeline_tests.prose [PATH ...]``. It prints each violation, and counts per area.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

MAX_WORDS = 25
MAX_AVERAGE = 16.0

REFUSED_STARTS = re.compile(r"(What(?! to do:)|Whoever|Nobody|Of those|None of)\b")

_WORDS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
OWN_TERMS = tuple(_WORDS["own_terms"])
REFUSED_NAMES = frozenset(_WORDS["refused_names"])
REFUSED_PARTS = frozenset(_WORDS["refused_parts"])
REFUSED_MODULES = frozenset(_WORDS["refused_modules"])
PUBLIC_NAMES: dict[str, list[str]] = _WORDS["public_names"]

_SQL = re.compile(r"(\s|--.*\n)*(SELECT|WITH|INSERT|DELETE|UPDATE|CREATE|ALTER|COPY|TRUNCATE|LOCK|SET)\s")
_ABBREVIATIONS = re.compile(r"\b(e\.g|i\.e|etc|vs|cf|approx)\.", re.I)
_SENTENCE_END = re.compile(r"(?<=[.!?])[)\"'*]*\s+(?=[A-Z0-9`\"'(“\[*]|CODE\b|scm-sync|docs/|gitlab\.com)")
_WORD = re.compile(r"[^\W_]")


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph, a list item, a table cell or a message, with the line where it begins."""

    path: Path
    line: int
    text: str
    area: str
    counts: bool
    """Whether its sentences count for the average: fragments in tables, comments and messages do not."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A sentence or name that breaks a rule."""

    path: Path
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        target = self.path.relative_to(ROOT) if self.path.is_relative_to(ROOT) else self.path
        return f"{target}:{self.line}: {self.rule}: {self.text}"


@dataclass(slots=True)
class Area:
    """Counts of one area: a page of the docs, or a package of the program."""

    words: int = 0
    violations: int = 0
    sentences: int = 0
    sentence_words: int = 0

    @property
    def average(self) -> float:
        return self.sentence_words / self.sentences if self.sentences else 0.0


def sentences(text: str) -> list[str]:
    """The sentences of ``text``. A span of code becomes the one word CODE, a link its text."""
    text = re.sub(r"(`+)(?:(?!\1).)+\1", "CODE", text, flags=re.S)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r":(class|func|mod|meth|data|attr):CODE", "CODE", text)
    text = re.sub(r"\bCODE([']s)?([-/.:]\w+)*", "CODE", text)
    text = _ABBREVIATIONS.sub(lambda found: found[0].replace(".", ""), text)
    return [part.strip() for part in _SENTENCE_END.split(" ".join(text.split())) if part.strip()]


def count_words(sentence: str) -> int:
    return sum(1 for word in sentence.split() if _WORD.search(word))


def _markdown_blocks(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str, bool]]:
    """Paragraphs, list items and table cells: line, text, and whether its sentences count for the average."""
    block: list[str] = []
    start = 0
    fenced = False
    for number, line in lines:
        stripped = line.strip()
        if stripped.startswith("```"):
            fenced = not fenced
        ends = fenced or not stripped or stripped.startswith(("```", "#", "|", "<!--"))
        item = re.match(r"\s*([-*]|\d+\.)\s+(.*)", line)
        if block and (ends or item):
            yield start, " ".join(block), True
            block = []
        if fenced or ends:
            if stripped.startswith("|") and not fenced and not re.fullmatch(r"[|\s:-]+", stripped):
                cells = re.split(r"(?<!\\)\|", stripped.strip("|"))
                yield from ((number, cell.strip(), False) for cell in cells)
            continue
        if not block:
            start = number
        block.append(item[2] if item else stripped)
    if block:
        yield start, " ".join(block), True


def markdown_texts(path: Path) -> Iterator[Text]:
    lines = enumerate(path.read_text().splitlines(), 1)
    for line, text, counts in _markdown_blocks(lines):
        yield Text(path, line, text, _area(path), counts)


def _docstring_blocks(text: str, first_line: int) -> Iterator[tuple[int, str]]:
    """The paragraphs and list items of a docstring, without indented code behind ``::`` and examples."""
    lines = []
    code_indent: int | None = None
    previous = ""
    for number, line in enumerate(text.expandtabs().splitlines(), first_line):
        indent = len(line) - len(line.lstrip())
        if code_indent is not None and line.strip() and indent <= code_indent:
            code_indent = None
        if line.strip():
            if previous.rstrip().endswith("::"):
                code_indent = len(previous) - len(previous.lstrip())
                code_indent = code_indent if indent > code_indent else None
            previous = line
        if code_indent is None and not line.lstrip().startswith(">>>"):
            lines.append((number, line))
    yield from ((line, block) for line, block, _ in _markdown_blocks(lines))


def _joined(node: ast.expr) -> str | None:
    """The text of a string or f-string, with X for each placeholder."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else "X"
            for part in node.values
            if isinstance(part, ast.Constant | ast.FormattedValue)
        )
    return None


def _is_prose(text: str) -> bool:
    """Whether a string looks like text for a person: five words or more, most of them plain."""
    words = text.split() if not text.startswith("<!doctype") else []
    plain = sum(1 for word in words if re.fullmatch(r"[A-Za-z][A-Za-z'-]*[.,;:?!)]*", word.strip("\"'(`")))
    return len(words) >= 5 and plain * 3 >= len(words) * 2


class _PythonTexts(ast.NodeVisitor):
    """Collects docstrings and messages of a module."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.texts: list[Text] = []
        self._seen: set[int] = set()
        self.string_lines: set[int] = set()

    def _add(self, line: int, text: str, *, docstring: bool) -> None:
        area = _area(self.path)
        for at, block in _docstring_blocks(text, line):
            self.texts.append(Text(self.path, at, block, area, docstring))

    def _visit_body(self, node: ast.AST) -> None:
        for statement in getattr(node, "body", []):
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                value = statement.value
                if isinstance(value.value, str):
                    self._seen.add(id(value))
                    self._add(value.lineno, value.value, docstring=True)

    def generic_visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            self._visit_body(node)
        if isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in self._seen:
            self._visit_string(node)
            return
        super().generic_visit(node)

    def _visit_string(self, node: ast.Constant | ast.JoinedStr) -> None:
        text = _joined(node)
        if text is None:
            return
        self.string_lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        if _SQL.match(text):
            comments = re.findall(r"^\s*--\s?(.*)$", text, re.M)
            self._add(node.lineno, " ".join(comments), docstring=False)
        elif _is_prose(text):
            self._add(node.lineno, text, docstring=False)


def python_texts(path: Path) -> Iterator[Text]:
    """Docstrings, messages and comments of a module."""
    source = path.read_text()
    visitor = _PythonTexts(path)
    visitor.visit(ast.parse(source))
    yield from visitor.texts
    comment: list[str] = []
    start = 0
    for number, line in enumerate([*source.splitlines(), ""], 1):
        stripped = line.strip()
        if stripped.startswith("#") and number not in visitor.string_lines:
            start = start if comment else number
            comment.append(stripped.lstrip("#! "))
        elif comment:
            yield Text(path, start, " ".join(comment), _area(path), False)
            comment = []


def sql_texts(path: Path) -> Iterator[Text]:
    """Comments of a file of SQL: lines with two dashes, and texts of COMMENT ON."""
    source = path.read_text()
    for found in re.finditer(r"(?:^[ ]*--.*\n?)+|COMMENT ON [^']*'((?:[^']|'')*)'", source, re.M):
        text = found[1] if found[1] is not None else re.sub(r"^\s*--\s?", "", found[0], flags=re.M)
        yield Text(
            path, source.count("\n", 0, found.start()) + 1, text.replace("''", "'"), _area(path), False
        )


def _area(path: Path) -> str:
    """The page of a Markdown file, the package of a module, the folder of a file of SQL."""
    if not path.is_relative_to(ROOT):
        return str(path)
    relative = path.relative_to(ROOT)
    return str(relative) if path.suffix == ".md" else str(relative.parent)


def violations_of(text: Text) -> Iterator[Violation]:
    # A message is "what happened; what to do".
    parts = text.text.split("; ") if text.path.suffix == ".py" and not text.counts else [text.text]
    for sentence in (sentence for part in parts for sentence in sentences(part)):
        words = count_words(sentence)
        if words > MAX_WORDS:
            yield Violation(text.path, text.line, f"{words} words", sentence)
        if REFUSED_STARTS.match(sentence) and not sentence.endswith("?"):
            yield Violation(text.path, text.line, "refused start", sentence)


def _identifiers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The names that a module defines, with their lines."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.arg():
                yield node.lineno, node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.lineno, node.id
            case ast.alias(asname=str(name)):
                yield getattr(node, "lineno", 0), name
            case _:
                pass


def is_refused(name: str) -> bool:
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    return (
        name in REFUSED_NAMES
        or not REFUSED_PARTS.isdisjoint(part.lower() for part in parts)
        or re.match(r"_?(LEAST|MOST)_", name) is not None
    )


def old_names(path: Path) -> Iterator[Violation]:
    """The refused identifiers that a module defines, or that a file of SQL creates."""
    if path.suffix == ".py":
        if path.stem in REFUSED_MODULES:
            yield Violation(path, 1, "old name", path.stem)
        found: Iterable[tuple[int, str]] = [(1, path.stem), *_identifiers(ast.parse(path.read_text()))]
    else:
        pattern = r"(?:CREATE (?:OR REPLACE )?(?:TABLE|VIEW)|ADD COLUMN|RENAME .*TO)\s+(?:scm\.)?(\w+)"
        text = path.read_text()
        found = [(text.count("\n", 0, m.start()) + 1, m[1]) for m in re.finditer(pattern, text)]
    public = PUBLIC_NAMES.get(path.relative_to(ROOT).as_posix(), []) if path.is_relative_to(ROOT) else []
    for line, name in found:
        if is_refused(name) and name not in public:
            yield Violation(path, line, "old name", name)


def missing_terms(glossary: str) -> list[str]:
    """The words of this project that have no line in the glossary."""
    cells = re.findall(r"^\| ([^|]+) \|", glossary, re.M)
    words = {word.strip() for cell in cells for word in cell.split(",")}
    return sorted(set(OWN_TERMS) - words)


def all_files(paths: Iterable[Path]) -> list[Path]:
    """The texts below ``paths``. Released migrations are left out: they are never edited."""
    found: set[Path] = set()
    for path in paths:
        found |= {path} if path.is_file() else set(path.rglob("*"))
    return sorted(
        path
        for path in found
        if path.suffix in (".md", ".py", ".sql")
        and not (path.parent.name == "migrations" and re.match(r"00(0|1[01])|.*rollback", path.name))
        and "fixtures" not in path.parts
    )


def texts_of(path: Path) -> Iterator[Text]:
    return {".md": markdown_texts, ".py": python_texts, ".sql": sql_texts}[path.suffix](path)


def check(paths: Iterable[Path]) -> tuple[list[Violation], dict[str, Area]]:
    """Every violation in the files below ``paths``, and the counts of each area."""
    found: list[Violation] = []
    areas: dict[str, Area] = {}
    for path in all_files(paths):
        for text in texts_of(path):
            area = areas.setdefault(text.area, Area())
            violations = list(violations_of(text))
            found += violations
            area.violations += len(violations)
            for sentence in sentences(text.text):
                words = count_words(sentence)
                area.words += words
                if text.counts and sentence.endswith((".", "!", "?", ":")):
                    area.sentences += 1
                    area.sentence_words += words
    for name, area in areas.items():
        if area.average > MAX_AVERAGE:
            rule = f"average {area.average:.1f} words"
            found.append(Violation(ROOT / name, 1, rule, f"at most {MAX_AVERAGE:.0f} are allowed"))
            area.violations += 1
    return found, areas


TEXTS = (*sorted(ROOT.glob("*.md")), ROOT / "docs", ROOT / "sql", ROOT / "sync_pipeline", ROOT / "bench")
NAMES = (*TEXTS, ROOT / "sync_pipeline_sandbox", ROOT / "sync_pipeline_tests")


def check_names(paths: Iterable[Path]) -> list[Violation]:
    """Every refused identifier in the program, the sandbox, the tests and in new migrations."""
    files = (path for path in all_files(paths) if path.suffix != ".md")
    return [violation for path in files for violation in old_names(path)]


def main(arguments: list[str]) -> int:
    """Print violations and counts. With paths: all below them. Without: all but the pending areas.

    The exit code is 1 if there is a violation.
    """
    paths = [Path(argument).resolve() for argument in arguments]
    found, areas = check(paths or TEXTS)
    names = check_names(paths or NAMES)
    if not paths:
        glossary = ROOT / "docs" / "glossary.md"
        terms = missing_terms(glossary.read_text())
        found += [Violation(glossary, 1, "no line in the glossary", term) for term in terms]
    for violation in [*found, *names]:
        print(violation)
    for name, area in sorted(areas.items()):
        print(
            f"{name:45} {area.words:6} words {area.violations:4} violations "
            f"{1000 * area.violations / max(area.words, 1):5.1f} per 1,000 words, average {area.average:.1f}"
        )
    return 1 if found or names else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
