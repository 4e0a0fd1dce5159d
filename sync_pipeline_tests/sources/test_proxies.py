"""Which hosts NO_PROXY names, in all forms that people write."""

from __future__ import annotations

import pytest

from sync_pipeline.sources.proxies import is_exempt, proxy_for


@pytest.mark.parametrize(
    ("host", "no_proxy", "exempt"),
    [
        ("fd12::1", "fd00::/8", True),
        ("fe80::1", "fd00::/8", False),
        ("fd12::1", "10.0.0.0/8, fd12::1", True),
        ("fd12:0:0:0:0:0:0:1", "fd12::1", True),
        ("fe80::1%eth0", "fe80::/10", True),
        ("::1", "[::1]", True),
        ("::1", "[::1]:8080", True),
        ("::1", "[::1]:81", False),
        ("::ffff:10.1.2.3", "10.0.0.0/8", True),
        ("10.1.2.3", "10.0.0.0/8", True),
        ("10.1.2.3", "10.1.2.9/24", True),
        ("11.1.2.3", "10.0.0.0/8", False),
        ("10.1.2.3", "10.1.2.3:8080", True),
        ("10.1.2.3", "10.1.2.3:81", False),
        ("10.1.2.3", "2.3", False),
        ("gitlab.example.com", "example.com", True),
        ("gitlab.example.com", ".example.com", True),
        ("gitlab.example.com", "*.example.com", True),
        ("GitLab.Example.com.", "EXAMPLE.com", True),
        ("gitlab.example.com", "ample.com", False),
        ("gitlab.example.com", "gitlab.example.com:8080", True),
        ("gitlab.example.com", "gitlab.example.com:81", False),
        ("gitlab.example.com", "a b\tgitlab.example.com", True),
        ("gitlab.example.com", "10.0.0.0/8,fd00::/8", False),
        ("gitlab.example.com", "*", True),
        ("gitlab.example.com", " , ", False),
        ("gitlab.example.com", "999.0.0.0/8,[,]:,:::/x", False),
    ],
)
def test_which_hosts_are_asked_without_a_proxy(host: str, no_proxy: str, exempt: bool) -> None:
    assert is_exempt(host, 8080, no_proxy) == exempt


def test_the_variables_are_read_in_both_cases_and_for_every_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    assert proxy_for("https://a.test") is None
    monkeypatch.setenv("ALL_PROXY", "http://all:1")
    monkeypatch.setenv("https_proxy", "http://secure:2")
    assert proxy_for("https://a.test/x") == "http://secure:2"
    assert proxy_for("http://a.test/x") == "http://all:1"
    monkeypatch.setenv("NO_PROXY", "fd00::/8,b.test:443")
    assert proxy_for("https://[fd00::2]:8443/x") is None
    assert proxy_for("https://b.test/x") is None
    assert proxy_for("http://b.test/x") == "http://all:1"
    assert proxy_for("http://[") is None
