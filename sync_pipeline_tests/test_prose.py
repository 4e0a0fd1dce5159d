"""The checker of texts finds each kind of violation, and the texts of the project have none."""

from __future__ import annotations

from pathlib import Path

import pytest

from sync_pipeline_tests import prose

LONG = "One " + "two " * 24 + "three."


def _rules(path: Path, text: str) -> list[str]:
    path.write_text(text)
    return [violation.rule for violation in prose.check([path])[0]]


def test_the_texts_of_the_project_are_plain_english(capsys: pytest.CaptureFixture[str]) -> None:
    status = prose.main([])
    assert status == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        (f"{LONG}\n", ["26 words", "average 26.0 words"]),
        (f"Short.\n\n- {LONG}\n- Short one. Short two. Short three.\n", ["26 words"]),
        (f"| key | {LONG} |\n", ["26 words"]),
        ("What is missing is listed.\n", ["refused start"]),
        ("What is missing? A query lists it.\n", []),
        (
            "Whoever asks gets it. Nobody waits. Of those two, one is old. None of them run.\n",
            ["refused start"] * 4,
        ),
        (f"```\n{LONG}\n```\n", []),
        ("`one two` [three](" + "x" * 9 + ") e.g. four.\n", []),
    ],
)
def test_sentences_of_markdown(tmp_path: Path, text: str, rules: list[str]) -> None:
    assert _rules(tmp_path / "page.md", text) == rules


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        (f'"""{LONG}"""\n', ["26 words", "average 26.0 words"]),
        (f'"""Short."""\nraise ValueError(f"{{x}} {LONG}")\n', ["27 words"]),
        ('"""Short."""\n# Nobody reads this.\n', ["refused start"]),
        (f'"""Short."""\nquery = """\n-- {LONG}\nSELECT 1\n"""\n', ["26 words"]),
        (f'"""Short::\n\n    {LONG}\n\nEnd."""\n', []),
    ],
)
def test_sentences_of_python(tmp_path: Path, text: str, rules: list[str]) -> None:
    assert _rules(tmp_path / "module.py", text) == rules


def test_sentences_of_sql(tmp_path: Path) -> None:
    text = f"-- {LONG}\nSELECT 1;\nCOMMENT ON TABLE a IS 'Nobody''s.';\n"
    assert _rules(tmp_path / "0099.sql", text) == ["26 words", "refused start"]


@pytest.mark.parametrize("name", ["Turn", "_owed", "is_judged", "MostOwed", "LEAST_ROWS", "handed_out"])
def test_old_names_are_refused(name: str, tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(f"{name} = 1\n")
    assert [violation.text for violation in prose.old_names(module)] == [name]


@pytest.mark.parametrize("name", ["turn", "allowed", "at_least", "handed", "followed"])
def test_other_names_are_not(name: str) -> None:
    assert not prose.is_refused(name)


def test_a_term_without_a_line_in_the_glossary_is_missing() -> None:
    assert "lease" not in prose.missing_terms("| word | meaning |\n|---|---|\n| lease, right | to write |\n")
    assert "lease" in prose.missing_terms("| word | meaning |\n")
