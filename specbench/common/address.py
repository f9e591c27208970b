"""Address: an endpoint's URL as a user gives it, refused before anything is sent where no request could carry it."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from urllib.parse import urlsplit

from specbench.common.errors import UsageError, one_line

_LONGEST = 2000  # characters
_PATH = re.compile(r"[!-~]*")  # what a request line can hold; other characters have to be percent-encoded
_NAME = re.compile(r"[a-z0-9_.-]+", re.IGNORECASE)


def checked(url: str, flag: str, key_flag: str, scrub: Callable[[str], str]) -> tuple[str, str]:
    """The host of a web address, alone and with its port as the address writes it.

    Args:
        url: as the user gave it.
        flag: where, for errors: "--base-url".
        key_flag: how a key is given instead, for errors: "--api-key-env".
        scrub: takes the key out of a text.

    Raises:
        UsageError: no web address; or one that holds a user, a password or the key, none of which it shows.
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        # An empty query is none to urlsplit, and yet what follows would be put behind its "?".
        named = parts.scheme in ("http", "https") and parts.port != 0 and not re.search(r"[?#\s]", url)
        named = named and len(url) <= _LONGEST and bool(_PATH.fullmatch(parts.path))
        named = named and _is_host(host, "[" in parts.netloc)
    except ValueError:  # of a port, of brackets, of a name in other letters
        parts, host, named = urlsplit(""), "", False
    if "@" in (parts.netloc if named else url):
        raise UsageError(f"{flag} holds a user or password; give the key by {key_flag}")
    if not named:
        shown = one_line(scrub(url[:_LONGEST]), 120)
        raise UsageError(f"{flag} {shown} is no web address; write it as http://localhost:8000/v1")
    if scrub(url) != url:  # the record of a judge names its host
        raise UsageError(f"{flag} holds the key; give the key by {key_flag} alone")
    return host, parts.netloc


def is_loopback(host: str) -> bool:
    """Whether a host is this machine itself, for which no proxy is meant."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_host(host: str, bracketed: bool) -> bool:
    """Whether it can be looked up: an address, or a name whose letters DNS can write.

    Raises:
        ValueError: it cannot.
    """
    if bracketed:
        return ipaddress.ip_address(host).version == 6
    return bool(_NAME.fullmatch(host.encode("idna").decode()))
