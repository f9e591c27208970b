"""A judge at an OpenAI-compatible endpoint."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

from specbench.common import (
    ConnectionLost,
    Deadline,
    EnvironmentRefused,
    Secret,
    UsageError,
    check_address,
    parse_json,
    send,
)
from specbench.evals.judge.judge import Unanswered
from specbench.evals.judge.judge_prompts import JudgePrompt
from specbench.results import JudgeSpec

_TRIES = 3
_PAUSE_S = 2.0  # before the second try; doubled before the third
_LONGEST = 1 << 18  # most characters of a judgment that are kept; typical ones have a few thousand
_READ = 1 << 12  # characters shown from the beginning of a text
_LARGEST, _LARGEST_ERROR = 4 << 20, 1 << 16  # most bytes of an answer, and of a refusal
_REFUSED = {400, 413, 422}  # a fault of this prompt, not of the endpoint: too long, filtered
_WRONG = {401: "refuses the key", 403: "refuses the key", 404: "knows no such model or path"}


class _Transient(Exception):
    """A failure after which another try makes sense."""


class Endpoint:
    """Ask ``BASE/chat/completions`` greedily. Several threads may call it; close it when done."""

    def __init__(
        self,
        model: str,
        base_url: str,
        key: str | None,
        *,
        max_tokens: int,
        timeout_s: float,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        """
        Args:
            base_url: "http://localhost:8000/v1"; a trailing slash is fine.
            key: sent as a bearer token; never written anywhere, not even if the endpoint echoes it.
            timeout_s: seconds for a whole exchange, from the name lookup to the last byte.
            sleep: waits between tries; None until :meth:`close`.
        """
        self._secret = None if key is None else Secret(key)
        self._host = check_address(base_url, "--base-url", "--api-key-env", self._scrubbed)
        if not model.strip() or self._scrubbed(model) != model:  # the record of a judge contains its name
            raise UsageError("--judge is empty or holds the key; give it the model's name as the endpoint knows it")
        self._url = f"{base_url.rstrip('/')}/chat/completions"
        self._timeout_s = timeout_s
        self._over = threading.Event()
        self._sleep = sleep or self._over.wait
        self.spec = JudgeSpec(id=model, kind="endpoint", endpoint=self._host, max_tokens=max_tokens)

    def ask(self, prompt: JudgePrompt) -> str:
        """The judge's reply; empty if it returned no text.

        Raises:
            Unanswered: it refuses this prompt.
            UsageError: the key, the model or the address is wrong.
            EnvironmentRefused: three tries gave no valid answer.
            GivenUp: it was closed meanwhile.
        """
        messages = [{"role": "system", "content": prompt.system}, {"role": "user", "content": prompt.user}]
        body = {"model": self.spec.id, "messages": messages, "temperature": 0, "max_tokens": self.spec.max_tokens}
        for attempt in range(1, _TRIES + 1):
            try:
                return self._words(self._post(json.dumps(body).encode()))
            except _Transient as error:
                if attempt == _TRIES:
                    raise EnvironmentRefused(
                        f"the judge at {self._host} gave no answer in {_TRIES} tries ({error}); what is judged already "
                        "is kept, repeat the command to go on"
                    ) from None
                self._sleep(_PAUSE_S * 2 ** (attempt - 1))
        raise AssertionError

    def close(self) -> None:
        """Cancel the questions in flight and refuse new ones."""
        self._over.set()

    def _post(self, body: bytes) -> bytes:
        key = None if self._secret is None else self._secret.key
        deadline = Deadline(self._timeout_s, self._over)
        try:
            with send(self._url, body, key, deadline) as reply:
                if 200 <= reply.status < 300:
                    content = reply.beginning(_LARGEST + 1)
                    if len(content) > _LARGEST:
                        raise _Transient(f"more than {_LARGEST >> 20} MiB")
                    return content
                try:
                    content = reply.beginning(_LARGEST_ERROR)
                except ConnectionLost:  # the status is enough
                    content = b""
                refusal = self._refusal(reply.status, self._said(content))
        except TimeoutError:
            raise _Transient(f"no answer within {self._timeout_s:g} s") from None
        except ConnectionLost as error:
            raise _Transient(self._shown(str(error))) from None
        raise refusal

    def _refusal(self, code: int, detail: str) -> Exception:
        if code in _WRONG:
            return UsageError(
                f"the judge at {self._host} {_WRONG[code]} (HTTP {code}{detail}); "
                "check --judge, --base-url and --api-key-env"
            )
        if code in _REFUSED:
            return Unanswered(f"HTTP {code}{detail}")
        if 300 <= code < 400:
            return UsageError(f"the judge at {self._host} redirects elsewhere (HTTP {code}); give that --base-url")
        return _Transient(f"HTTP {code}{detail}")

    def _said(self, body: bytes) -> str:
        """The endpoint's own reason. Its reply is untrusted data."""
        try:
            text = parse_json(body, "the refusal", "")["error"]
            text = text["message"] if isinstance(text, dict) else text
        except (UsageError, KeyError, TypeError):
            return ""
        return f": {self._shown(str(text))}"

    def _words(self, answer: bytes) -> str:
        """The message in a chat completion."""
        try:
            content = parse_json(answer, "the answer", "")["choices"][0]["message"]["content"]
        except (UsageError, KeyError, IndexError, TypeError):
            start = self._shown(answer.decode(errors="replace"), 60)
            raise _Transient(f"an answer that is not a chat completion: '{start}'") from None
        if content is not None and not isinstance(content, str):
            raise _Transient("a message whose content is not text")
        return self._scrubbed((content or "")[:_LONGEST])  # null: a filter removed it

    def _shown(self, text: str, most: int = 160) -> str:
        """One line of at most ``most`` characters. The key is removed first: a cut-off key would not be found."""
        return " ".join(self._scrubbed(text[:_READ]).split())[:most]

    def _scrubbed(self, text: str) -> str:
        return text if self._secret is None else self._secret.scrub(text)
