"""Wrap a decoder: record its calls and check its return values.

Plug-ins are trusted code that may be faulty. An invalid return value is refused in the call that returned it, so the
error can name the call. :func:`blame` turns an exception into the error that the user sees.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real

from specbench.common import Activity, EnvironmentRefused, PluginFault, heartbeat, plugins
from specbench.decoding import BadTree, Branch, Decoder, Fill, FillDecoder, FillResult, Method, StepResult, TokenTree
from specbench.models import LoadedModel

_ALL = (True, True)  # a tree without ``accept`` may have all its rows accepted
_SHARED, _AT = heartbeat.SHARED, heartbeat.AT
# As plain integers: storing an enumeration's member takes twice as long.
_OURS, _BEGIN, _DRAFT, _OBSERVE, _END, _MEASURES = map(
    int, (Activity.OURS, Activity.BEGIN, Activity.DRAFT, Activity.OBSERVE, Activity.END, Activity.MEASURES)
)


#: Most passes without a finished token: so many, and so many for each row of the largest pass.
_IDLE, _IDLE_EACH = 64, 4


class CheckedDecoder:
    """Call a decoder, record each call in :mod:`specbench.common.heartbeat`, and refuse invalid return values.

    After a call that raises, the heartbeat still shows that call. :meth:`draft` and :meth:`observe` are timed, so they
    leave it to the caller to record the next activity.

    Args:
        most: most rows of a tree.
    """

    def __init__(self, decoder: Decoder, most: int) -> None:
        self._decoder, self._most = decoder, most
        self._idle = 0  # passes over masked positions since the last finished token

    def begin(self, ids: Sequence[int]) -> TokenTree | None:
        """The guesses to send with the prompt: draft-only rows, or None."""
        _SHARED[_AT] = _BEGIN
        tree: object = self._decoder.begin(tuple(ids))  # a copy, because other methods get the same prompt
        if not (tree is None or type(tree) is TokenTree):
            raise plugins.Refused(f"it returned {type(tree).__name__:.40}, not a TokenTree or None")
        if tree is not None and len(tree) > 1 and any((tree.accept or _ALL)[1:]):
            raise plugins.Refused("guesses sent with the prompt must be draft-only rows")
        _SHARED[_AT] = _OURS
        return tree

    def draft(self, root: int) -> TokenTree:
        """The tree of the next step, whose root is the last emitted token."""
        _SHARED[_AT] = _DRAFT
        tree = self._decoder.draft()
        if type(tree) is not TokenTree or len(tree.tokens) > self._most or tree.tokens[0] != root:
            raise self._wrong(tree, root)
        return tree

    def read(self, ids: Sequence[int]) -> Fill:
        """The pass that reads the prompt, of a decoder that fills blocks."""
        _SHARED[_AT] = _BEGIN
        return self._filling(self._fills.read(tuple(ids)))

    def fill(self) -> Fill:
        """The next pass of a decoder that fills blocks."""
        _SHARED[_AT] = _DRAFT
        return self._filling(self._fills.fill())

    def take(self, result: FillResult) -> list[int]:
        """Pass a pass's result to the decoder; the answer's tokens that have become final."""
        _SHARED[_AT] = _OBSERVE
        tokens = [*self._fills.take(result)]
        self._idle = 0 if tokens else self._idle + 1
        if self._idle > _IDLE + _IDLE_EACH * self._most:
            raise plugins.Refused(f"it finished no token in {self._idle:,} passes")
        if not all(map(_is_whole, tokens)):
            raise plugins.Refused(f"its tokens are {str(tokens)[:40]}, which are not token ids")
        return tokens

    @property
    def _fills(self) -> FillDecoder:
        assert isinstance(self._decoder, FillDecoder)
        return self._decoder

    def _filling(self, made: object) -> Fill:
        if type(made) is not Fill:
            raise plugins.Refused(f"it returned {type(made).__name__:.40}, not a Fill")
        return made

    def rest(self, root: int) -> TokenTree:
        """The tree of a plain step: the root alone."""
        _SHARED[_AT] = _DRAFT
        tree = TokenTree.chain([root])
        self._decoder.instead(tree)
        return tree

    def _wrong(self, tree: object, root: int) -> plugins.Refused:
        if type(tree) is not TokenTree:
            return plugins.Refused(f"it returned {type(tree).__name__:.40}, not a TokenTree")
        if len(tree.tokens) > self._most:
            return plugins.Refused(f"its tree has {len(tree.tokens):,} rows, and its max_rows is {self._most:,}")
        return plugins.Refused(f"its tree has root {tree.tokens[0]}, and the last emitted token is {root}")

    def observe(self, result: StepResult) -> None:
        """Pass a step's result to the decoder."""
        _SHARED[_AT] = _OBSERVE
        self._decoder.observe(result)

    def end(self) -> None:
        """End the request."""
        _SHARED[_AT] = _END
        self._decoder.end()
        _SHARED[_AT] = _OURS

    def draft_forwards(self) -> int:
        """Forwards of the decoder's draft model."""
        _SHARED[_AT] = _MEASURES
        found = self._decoder.draft_forwards
        if not _is_whole(found) or found < 0:
            raise plugins.Refused(f"its draft_forwards is {str(found)[:40]}, which is not a count")
        _SHARED[_AT] = _OURS
        return int(found)

    def measures(self, kept: int, stopped: bool) -> dict[str, float]:
        """The decoder's own figures of a finished request."""
        _SHARED[_AT] = _MEASURES
        found = dict(self._decoder.measures(kept, stopped))
        for name, value in found.items():
            if not (isinstance(name, str) and _is_number(value) and math.isfinite(value)):
                raise plugins.Refused(f"its measure {str(name)[:40]} is {str(value)[:40]}, which is not a number")
        _SHARED[_AT] = _OURS
        return {name: float(value) for name, value in found.items()}

    def branches(self) -> Sequence[Branch]:
        """The decoder's branches of a finished request."""
        _SHARED[_AT] = _MEASURES
        found = []
        for each in self._decoder.branches():
            if not isinstance(each, Branch):
                raise plugins.Refused(f"it returned {type(each).__name__:.40}, not a Branch")
            tokens = tuple(each.tokens)
            if not (all(map(_is_whole, (each.step, *tokens))) and _is_number(each.logp)):
                raise plugins.Refused(f"its branch of step {str(each.step)[:40]} has something else than numbers")
            found.append(Branch(int(each.step), tuple(map(int, tokens)), float(each.logp)))
        _SHARED[_AT] = _OURS
        return found


def check_wishes(method: Method, model: LoadedModel) -> None:
    """Refuse a method that asks for outputs that the target does not have."""
    words, layers = model.vocab_size, int(model.model.config.get_text_config().num_hidden_layers)
    with plugins.plugin_call(method.who):
        if method.top_k > words:
            raise plugins.Refused(f"its top_k is {method.top_k:,}, and the model has {words:,} tokens")
        if any(layer > layers for layer in method.taps):
            raise plugins.Refused(f"its taps are {str(method.taps)[:80]}, and the model has {layers} layers")


def blame(raised: BaseException, method: Method, at: Activity) -> BaseException:
    """The error for an exception while a method decoded, depending on what the process was doing."""
    theirs = at not in (Activity.OURS, Activity.FORWARD) or isinstance(raised, (BadTree, PluginFault, SystemExit))
    if isinstance(raised, plugins.StepTimeout) and not theirs:
        return EnvironmentRefused(
            f"{method.label}: a step {raised}; finished requests are kept, --step-timeout allows more"
        )
    if not theirs or isinstance(raised, EnvironmentRefused):  # mostly out of memory, in any call
        return raised
    return plugins.fault(
        raised, method.who, heartbeat.WORDS[at] if at != Activity.FORWARD else "in draft", method.label
    )


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
