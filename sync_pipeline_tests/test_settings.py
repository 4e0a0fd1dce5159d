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
    for name in ("SCM_CHUNK_REVISIONS", "SCM_CA_FILE", "SCM_CONFIG", "SVN_PASSWORD", "GITLAB_TOKEN"):
        monkeypatch.setenv(name, "")
    assert load_settings() == load_settings(chunk_revisions=1000)


@pytest.mark.parametrize(
    ("name", "value", "parts"),
    [
        ("SCM_CHUNK_REVISION", "1", ["SCM_CHUNK_REVISION", "did you mean SCM_CHUNK_REVISIONS?"]),
        ("SCM_NOTHING_LIKE_IT", "1", ["SCM_NOTHING_LIKE_IT", "python -m sync_pipeline.settings"]),
        ("SCM_DAGSTER_DATABASE_URI", "1", ["did you mean SCM_DAGSTER_DATABASE_URL?"]),
        ("SCM_CHUNK_REVISIONS", "many", ["SCM_CHUNK_REVISIONS", "integer", "'many'"]),
        ("SCM_CHUNK_REVISIONS", "0", ["SCM_CHUNK_REVISIONS", "greater than or equal to 1"]),
        ("SCM_SYNC_INTERVAL", "nan", ["SCM_SYNC_INTERVAL", "finite"]),
        ("SCM_SYNC_INTERVAL", "inf", ["SCM_SYNC_INTERVAL", "finite"]),
        ("SCM_CA_FILE", "/absent.pem", ["SCM_CA_FILE", "/absent.pem"]),
        ("SCM_SVN_TRUST_FAILURES", "expired,all", ["SCM_SVN_TRUST_FAILURES", "'all'", "unknown-ca"]),
        ("SCM_GITLAB", "[]", ["unknown setting SCM_GITLAB ", "did you mean"]),
        ("SCM_GITLAB_PARALLEL", "17", ["SCM_GITLAB_PARALLEL", "less than or equal to 16"]),
        ("SCM_GITLAB_URL", "gitlab.example.com", ["SCM_GITLAB_URL", "https://gitlab.example.com"]),
        ("SCM_GITLAB_URL", "https://h/a?x=1", ["SCM_GITLAB_URL", "without ?"]),
        ("SCM_HISTORY_FLOOR", "2999-01-01", ["SCM_HISTORY_FLOOR", "to today"]),
        ("SCM_HISTORY_FLOOR", "soon", ["SCM_HISTORY_FLOOR", "date"]),
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
        ("[scm]\nonly = 'x'", ["unknown setting scm in", "python -m sync_pipeline.settings"]),
        ("chunk_revisions = 'many'", ["chunk_revisions in", "integer"]),
        ("chunk_revisions = true", ["chunk_revisions in", "true and false"]),
        ("chunk_revisions = {a = 1}", ["chunk_revisions in", "integer"]),
        ("gitlab = 'x'", ["gitlab in", "write [[gitlab]]"]),
        ("[[gitlab]]\ntoken = 'a'", ["[[gitlab]] number 1 in", "url: field required"]),
        ("[[gitlab]]\nurl = 'https://h'\ntokn = 'a'", ["number 1 in", "tokn: unknown key", "token?"]),
        ("[[gitlab]]\nurl = 'https://h'\ntoken = 'a'\ntoken_env = 'B'", ["number 1 in", "one of token"]),
        ("[[gitlab]]\nurl = 'https://h'\n[[gitlab]]\nurl = 'https://H:443/b'", ["h is configured as two"]),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(text: str, parts: list[str], folder: Path) -> None:
    path = config(folder, text)
    message = refusal()
    for part in parts if "two GitLab" in message else [str(path), *parts]:
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


def test_the_text_of_the_settings_holds_no_secret(folder: Path) -> None:
    config(folder, f"[[gitlab]]\nurl = 'https://two'\ntoken = '{SECRET}'")
    loaded = load_settings(
        svn_password=SECRET,
        database_url=f"postgresql://u:{SECRET}@h/d",
        gitlab_url="https://one",
        gitlab_token=SECRET,
    )
    assert [server.token() for server in loaded.gitlab_servers()] == [SECRET, SECRET]
    assert SECRET not in repr(loaded) + repr(loaded.gitlab_servers())


# GitLab servers -----------------------------------------------------------------------------------------


def test_there_is_no_gitlab_unless_one_is_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITLAB_TOKEN", SECRET)  # of another tool: it is sent nowhere
    assert load_settings().gitlab_servers() == ()


def test_each_server_has_its_own_token_and_authorities(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "all.pem").touch()
    (folder / "four.pem").touch()
    (folder / "third").write_text(" three\n")
    config(
        folder,
        f"""
        ca_file = "{folder}/all.pem"
        gitlab_url = "HTTPS://One.example.com:443/code/api/v4/"
        [[gitlab]]
        url = "http://two:8080"
        token_env = "TWO"
        [[gitlab]]
        url = "https://three"
        token_file = "third"
        [[gitlab]]
        url = "https://four/"
        token = "four"
        ca_file = "{folder}/four.pem"
        """,
    )
    monkeypatch.setenv("GITLAB_TOKEN", " one\r\n")
    monkeypatch.setenv("GITLAB_PRIVATE_TOKEN", "not this one")
    monkeypatch.setenv("TWO", "two")
    servers = load_settings().gitlab_servers()
    assert [(server.url, server.token(), server.ca_file and server.ca_file.name) for server in servers] == [
        ("https://one.example.com/code", "one", "all.pem"),
        ("http://two:8080", "two", "all.pem"),
        ("https://three", "three", "all.pem"),
        ("https://four", "four", "four.pem"),
    ]


def test_a_rotated_token_is_used_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config(folder, "[[gitlab]]\nurl = 'https://two'\ntoken_env = 'TWO'")
    monkeypatch.setenv("GITLAB_TOKEN", "of another tool")  # does not go with a token file
    one, two = load_settings(gitlab_url="https://one", gitlab_token_file="token").gitlab_servers()
    for text in ("first", "second"):
        (folder / "token").write_text(f"{text}\n")
        monkeypatch.setenv("TWO", text)
        assert (one.token(), two.token()) == (text, text)
    for bad in (f"{SECRET} {SECRET}", f"{SECRET}\u00e9", ""):
        (folder / "token").write_text(bad)
        monkeypatch.setenv("TWO", bad)
        for server, name in ((one, "token"), (two, "TWO")):
            with pytest.raises(ConfigurationError, match=name) as caught:
                server.token()
            assert SECRET not in str(caught.value)
    (folder / "token").unlink()
    with pytest.raises(ConfigurationError, match="cannot be read"):
        one.token()


@pytest.mark.parametrize("name", ["SCM_GITLAB_TOKEN", "GITLAB_TOKEN", "GITLAB_PRIVATE_TOKEN"])
@pytest.mark.parametrize("bad", [f"{SECRET} {SECRET}", f"{SECRET}\u00e9", f"{SECRET}\n{SECRET}"])
def test_what_cannot_be_a_token_is_refused_unseen(
    name: str, bad: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, bad)
    message = refusal()
    assert message.startswith(f"{name}: the token holds a blank")
    assert SECRET not in message


@pytest.mark.parametrize(
    "text",
    [
        f"gitlab_url = 'https://u:{SECRET}@h'",
        f"gitlab_token = ['{SECRET}']",
        f"gitlab_token = '{SECRET}'\ngitlab_token_file = 'f'",
        f"gitlab = '{SECRET}'",
        f"[gitlab]\ntoken = '{SECRET}'",
        f"[[gitlab]]\ntoken = '{SECRET}'",
        f"[[gitlab]]\nurl = 'https://h'\ntoken = '{SECRET}'\nca_file = 'none.pem'",
        f"[[gitlab]]\nurl = 'https://u:{SECRET}@h'",
        f"[[gitlab]]\nurl = 'https://h'\ntoken = '{SECRET}'\ntoken_file = 'f'",
    ],
)
def test_no_refusal_of_a_server_repeats_its_token(text: str, folder: Path) -> None:
    config(folder, text)
    assert SECRET not in refusal()


def test_a_wrong_override_is_named_as_the_option() -> None:
    assert refusal(chunk_revisions="x").startswith("--chunk-revisions: ")
    assert "did you mean chunk_revisions?" in refusal(chunk_revision=1)


def test_the_state_folder_is_absolute(folder: Path) -> None:
    assert load_settings().state_dir == folder / ".state"
    assert load_settings(state_dir="/srv/state").catalog_file == Path("/srv/state/catalog.json")


def test_the_generated_page_is_current() -> None:
    page = Path(settings.__file__).parent.parent / "docs" / "settings.md"
    assert page.read_text() == settings.document(), "run: python -m sync_pipeline.settings > docs/settings.md"
