"""Settings: precedence, and refusals that name the key, the problem and the way out."""

from __future__ import annotations

from pathlib import Path

import pytest

from sync_pipeline import settings
from sync_pipeline.errors import ConfigurationError
from sync_pipeline.settings import load_settings

SECRET = "hunter2-never-shown"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, so that no file of the clone is in force."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(settings, "project_root", lambda: tmp_path)
    return tmp_path


def config(folder: Path, text: str) -> Path:
    path = folder / "sync_pipeline.toml"
    path.write_text(text)
    return path


def refusal(**overrides: object) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load_settings(**overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_command_line_wins_over_environment_over_file_over_default(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_settings().chunk_revisions == 1000
    config(folder, "chunk_revisions = 300\nsync_interval = 7")
    assert load_settings().chunk_revisions == 300
    monkeypatch.setenv("SCM_CHUNK_REVISIONS", "200")
    assert load_settings().chunk_revisions == 200
    assert load_settings(chunk_revisions=100, sync_interval=None).chunk_revisions == 100
    assert load_settings().sync_interval == 7


def test_scm_config_names_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config(folder, "chunk_revisions = 300")
    (folder / "other.toml").write_text("chunk_revisions = 400")
    monkeypatch.setenv("SCM_CONFIG", str(folder / "other.toml"))
    assert load_settings().chunk_revisions == 400
    monkeypatch.setenv("SCM_CONFIG", str(folder / "absent.toml"))
    assert "absent.toml" in refusal()


def test_names_of_the_replaced_system_are_accepted_below_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SVN_USERNAME", "old")
    monkeypatch.setenv("SVN_PASSWORD", SECRET)
    assert load_settings().svn_username == "old"
    assert load_settings().svn_password.get_secret_value() == SECRET
    monkeypatch.setenv("SCM_SVN_USERNAME", "new")
    assert load_settings().svn_username == "new"


def test_an_empty_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SCM_CHUNK_REVISIONS", "SCM_SVN_CA_FILE", "SCM_CONFIG", "SVN_PASSWORD"):
        monkeypatch.setenv(name, "")
    assert load_settings() == load_settings(chunk_revisions=1000)


@pytest.mark.parametrize(
    ("name", "value", "parts"),
    [
        ("SCM_CHUNK_REVISION", "1", ["SCM_CHUNK_REVISION", "did you mean SCM_CHUNK_REVISIONS?"]),
        ("SCM_NOTHING_LIKE_IT", "1", ["SCM_NOTHING_LIKE_IT", "docs/settings.md"]),
        ("SCM_DAGSTER_DATABASE_URI", "1", ["did you mean SCM_DAGSTER_DATABASE_URL?"]),
        ("SCM_CHUNK_REVISIONS", "many", ["SCM_CHUNK_REVISIONS", "integer", "'many'"]),
        ("SCM_CHUNK_REVISIONS", "0", ["SCM_CHUNK_REVISIONS", "greater than or equal to 1"]),
        ("SCM_SYNC_INTERVAL", "nan", ["SCM_SYNC_INTERVAL", "finite"]),
        ("SCM_SYNC_INTERVAL", "inf", ["SCM_SYNC_INTERVAL", "finite"]),
        ("SCM_SVN_CA_FILE", "/absent.pem", ["SCM_SVN_CA_FILE", "/absent.pem"]),
        ("SCM_SVN_TRUST_FAILURES", "expired,all", ["SCM_SVN_TRUST_FAILURES", "'all'", "unknown-ca"]),
        ("SCM_LEASE_RENEW", "60", ["lease_renew must be shorter than lease_length"]),
    ],
)
def test_a_wrong_variable_is_named_with_the_way_out(
    name: str, value: str, parts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    message = refusal()
    for part in parts:
        assert part in message


def test_variables_that_are_no_settings_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SCM_DEBUG", "SCM_DAGSTER_HOST", "SCM_TEST_ANYTHING"):
        monkeypatch.setenv(name, "1")
    load_settings()


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("chunk_revisions 5", ["line 1, column 17"]),
        ("only = 'x'\nchunk_revisions = [1,\n", ["line 2, column 22"]),
        ("chunk_revision = 5", ["unknown setting chunk_revision in", "did you mean chunk_revisions?"]),
        ("[scm]\nonly = 'x'", ["unknown setting scm in", "docs/settings.md"]),
        ("chunk_revisions = 'many'", ["chunk_revisions in", "integer"]),
        ("chunk_revisions = true", ["chunk_revisions in", "true and false"]),
        ("chunk_revisions = {a = 1}", ["chunk_revisions in", "integer"]),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(text: str, parts: list[str], folder: Path) -> None:
    path = config(folder, text)
    message = refusal()
    for part in [str(path), *parts]:
        assert part in message


def test_a_file_that_is_not_utf8_is_refused_with_the_line(folder: Path) -> None:
    (folder / "sync_pipeline.toml").write_bytes(b"# fine\nonly = '\xff'\n")
    assert "line 2 is not UTF-8" in refusal()


def test_no_refusal_repeats_a_secret(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config(folder, f"svn_password = ['{SECRET}']\ndatabase_url = ['postgresql://u:{SECRET}@h/d']")
    assert SECRET not in refusal()
    monkeypatch.setenv("SCM_SVN_PASSWORD", SECRET)
    message = refusal()
    assert SECRET not in message
    assert "database_url" in message


def test_the_text_of_the_settings_holds_no_secret() -> None:
    text = repr(load_settings(svn_password=SECRET, database_url=f"postgresql://u:{SECRET}@h/d"))
    assert SECRET not in text


def test_a_wrong_override_is_named_as_the_option() -> None:
    assert refusal(chunk_revisions="x").startswith("--chunk-revisions: ")
    assert "did you mean chunk_revisions?" in refusal(chunk_revision=1)


def test_the_state_folder_is_absolute(folder: Path) -> None:
    assert load_settings().state_dir == folder / ".state"
    assert load_settings(state_dir="/srv/state").catalog_file == Path("/srv/state/catalog.json")


def test_the_generated_page_is_current() -> None:
    page = Path(settings.__file__).parent.parent / "docs" / "settings.md"
    assert page.read_text() == settings.document(), "run: python -m sync_pipeline.settings > docs/settings.md"
