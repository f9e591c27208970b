"""A key in every writing that an endpoint may give it, whole and cut off, and texts that only look like it."""

from __future__ import annotations

import base64
import html
import json
from urllib.parse import quote

import pytest
from support.wording import wording

from specbench.common.errors import UsageError
from specbench.evals.judge.secret import HIDDEN, Secret

KEY = "sk-aB3/x+9=Qz%41\\\"&'z~_7"
KEYS = [KEY, "sk-secret", "abcd", "ab%2Fcd12", "deadbeef00ff", "\\\\\\\\aaaa"]


def base64_of(text: str) -> list[str]:
    return [encode(text.encode()).decode() for encode in (base64.b64encode, base64.urlsafe_b64encode)]


def writings(key: str) -> list[str]:
    return [
        key, f"Bearer {key}", f"x{key}{key}y", f"%{key}", f"\\{key}", f"&#{key}", f"\\u00{key}",
        quote(key), quote(key, safe=""), quote(quote(key, safe=""), safe=""),
        "".join(f"%{ord(char):02x}" for char in key),
        json.dumps(key), json.dumps(json.dumps(key)), json.dumps(key).replace("/", "\\/"),
        repr(f"Bearer {key}".encode()),
        "".join(f"\\u{ord(char):04X}" for char in key), "".join(f"\\x{ord(char):02x}" for char in key),
        key.upper(), key.lower(), key.encode().hex(), key.encode().hex().upper(),
        html.escape(key), "".join(f"&#{ord(char)};" for char in key), "".join(f"&#x{ord(char):x};" for char in key),
        "\0".join(key), f"{key[:3]}\n{key[3:]}", f"{key[:3]}\u200b{key[3:]}",
        *base64_of(key), *base64_of(f"Bearer {key}"), *base64_of(f"u:{key}"),
        *base64_of(f"Authorization: Bearer {key}!"),
        *(quote(text, safe="") for text in base64_of(key)),
    ]  # fmt: skip


@pytest.mark.parametrize("key", KEYS, ids=range(len(KEYS)))
def test_no_writing_of_a_key_is_left(key: str) -> None:
    secret = Secret(key)
    for written in writings(key):
        said = secret.scrub(f"before: {written} :after")
        assert HIDDEN in said, written
        assert said.startswith("before: ")
        assert said.endswith(" :after")
        # At most what base64 puts around it, and the marks before it: nothing of the key.
        assert len(said.replace(HIDDEN, "")) <= len("before:  :after") + 42, (written, said)
        assert secret.scrub(said) == said
        for size in range(4, len(key)):
            assert key[:size] not in said
    assert secret.scrub(key) == HIDDEN


@pytest.mark.parametrize("key", [KEY, "sk-proj-Ab12Cd34_Ef56Gh78", "deadbeef00ff1122"])
def test_a_key_that_is_spelt_or_in_pieces_is_hidden(key: str) -> None:
    secret = Secret(key)
    for parts in (
        " ".join(key), "-".join(key), " . ".join(key), "\n".join(key), " ".join(json.dumps(key)),
        "' + '".join((key[:5], key[5:11], key[11:])), "**, **".join((key[:7], key[7:])), key.encode().hex(" "),
        ", ".join(key.upper()), *([] if "\\" in key else ["%20".join(key), "&nbsp;".join(key)]),
    ):  # fmt: skip
        said = secret.scrub(f"before: {parts} :after")
        assert HIDDEN in said, parts
        assert said.startswith("before: ")
        assert said.endswith(" :after")
        assert sum(map(str.isalnum, said)) < len("beforeafterkeykey") + 4, (parts, said)


@pytest.mark.parametrize("written", [KEY, quote(KEY, safe=""), json.dumps(KEY)[1:-1], *base64_of(KEY)])
def test_a_key_that_was_cut_off_is_hidden_too(written: str) -> None:
    secret = Secret(KEY)
    plain = written == KEY
    for kept in range(1, len(written)):
        said = secret.scrub(f"it was {written[:kept]}")
        left = said.removeprefix("it was ").replace(HIDDEN, "")
        assert len(left) < (4 if plain else 12), said
        if kept >= 32 or (plain and kept >= 8):
            assert HIDDEN in secret.scrub(f"…{written[-kept:]} is wrong")
            assert HIDDEN in secret.scrub(f"{written[:kept]}… is wrong")


def test_other_text_stays_as_it_is() -> None:
    secret = Secret(KEY)
    strange = "50% of \\alpha &amp; &copy; &nosuch; %zz \\u12"
    for text in ("", "Rating: [[7]]", strange, "ask-", "sk-aB… is short", "é\ud800"):
        assert secret.scrub(text) == text


def test_a_long_text_is_scrubbed_in_good_time_wherever_the_key_is() -> None:
    text = "word " * 50_000
    assert Secret(KEY).scrub(f"{text}{KEY}{text}") == f"{text}{HIDDEN}{text}"


@pytest.mark.parametrize(
    "key",
    [
        "", " \t", "sk-se\ncret", "sk-se\r\nX: y",
        "sk-secret\n", "sk-sécret", "sk-密钥-密钥",
        "abc",
    ],
)  # fmt: skip
def test_what_is_no_key_is_refused_without_being_shown(key: str) -> None:
    with pytest.raises(UsageError, check=wording) as error:
        Secret(key)
    assert "\n" not in str(error.value)
    assert not key.strip() or key.strip() not in str(error.value).replace("characters", "")


def test_it_does_not_show_itself() -> None:
    assert KEY not in f"{Secret(KEY)!r} {Secret(KEY)}"
