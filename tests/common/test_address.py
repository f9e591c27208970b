"""Addresses that a user may give: those that can be asked, and one line for each of the others."""

from __future__ import annotations

import time

import pytest
from support.wording import wording

from specbench.backends.streaming import Server
from specbench.common.address import is_loopback
from specbench.common.errors import UsageError
from specbench.evals.judge.endpoint import Endpoint

GOOD = {
    "http://localhost:8000/v1": "localhost:8000", "HTTPS://Judge.example/v1/": "Judge.example", "http://h:/v1": "h:",
    "http://[::1]:8000/v1": "[::1]:8000", "http://10.0.0.1": "10.0.0.1",
    "http://[fe80::1%25eth0]/v1": "[fe80::1%25eth0]",
    "http://my_host.docker/a%20b/~c": "my_host.docker", "http://b\u00fccher.example/v1": "b\u00fccher.example",
}  # fmt: skip

BAD = [
    "", " ", "localhost:8000", "http:", "http://", "http:///v1", "http://:80/v1", "//h/v1", "file:///etc/passwd",
    "ftp://h/v1", "javascript:1", "http://h:0/v1", "http://h:99999/v1", "http://h:-1/v1", "http://h:x/v1",
    "http://h:8 0/v1",
    "http://a b/v1", "http://h/a b", "http://h/v1\r\nX: y", "http://h\r\n/v1", " http://h/v1", "http://h/v1\n",
    "http://h\t/v1",
    "http://h/v1?a=b", "http://h/v1?", "http://h/v1#x", "http://h/v1#", "http://[::1/v1", "http://[x]/v1",
    "http://[1.2.3.4]/v1",
    "http://h..x/v1", f"http://{'a' * 64}.x/v1", f"http://h/{'a' * 3000}", "http://h/\u00fc", "http://h\\x/v1", "http://h\0/v1",
    "http://\u202eh/v1", "http://\udc80/v1", "http://h<b>/v1", "http://h,x/v1", "http://%41/v1", "http://h\u2100/v1",
]  # fmt: skip

PRIVATE = ["http://me:secret@h/v1", "http://secret@h", "me:secret@h:80/v1", "http://me:sec/ret@h", "http:me:secret@h"]


def faults(url: str, key: str | None, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a judge's endpoint and another engine's say of an address."""
    found = []
    monkeypatch.setenv("A_KEY", key or "")
    for made in (
        lambda: Endpoint("m", url, key, max_tokens=1, timeout_s=1),
        lambda: Server(url, 1, "A_KEY" if key else ""),
    ):
        with pytest.raises(UsageError) as error:
            made()
        found.append(str(error.value))
    return found


@pytest.mark.parametrize(("url", "host"), GOOD.items())
def test_addresses_that_can_be_asked(url: str, host: str) -> None:
    assert Endpoint("m", url, None, max_tokens=1, timeout_s=1).spec.endpoint == host
    Server(url, 1)


@pytest.mark.parametrize("url", BAD, ids=range(len(BAD)))
def test_what_is_no_web_address_is_one_line_before_anything_is_asked(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = time.monotonic()
    for said in faults(url, None, monkeypatch):
        assert wording(said)
        assert said.isprintable()
        assert len(said) < 250
    assert time.monotonic() - begun < 1


@pytest.mark.parametrize("url", PRIVATE)
def test_a_password_in_an_address_is_refused_and_not_shown(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for said in faults(url, None, monkeypatch):
        assert wording(said)
        assert "sec" not in said
        assert "ret" not in said


@pytest.mark.parametrize("url", ["http://h/sk-Of-Mine-1234", "http://sk-of-mine-1234.example/v1", "h/sk-Of-Mine-1234"])
def test_a_key_in_an_address_is_refused_and_not_shown(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for said in faults(url, "sk-Of-Mine-1234", monkeypatch):
        assert "holds the key" in said or "[key] is no web address" in said
        assert "mine" not in said.lower()


def test_which_hosts_are_this_machine() -> None:
    assert [is_loopback(host) for host in ("localhost", "127.0.0.2", "::1", "example.org", "10.0.0.1")] == [
        True
    ] * 3 + [False] * 2
