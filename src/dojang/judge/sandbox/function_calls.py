"""Calls the functions of a program from another process, so that the program cannot tamper with assertions.

The candidate process runs the program and answers calls; the other process runs the assertions and sends calls. Plain
data is copied: an object that claims to equal everything has no influence, and expected values are never in the
candidate's memory. Other objects become handles, which can be passed back, called, iterated and asked for attributes.

Loaded by zygote.py in the judging interpreter: imports the standard library only.
"""

from __future__ import annotations

import builtins
import contextlib
import json
import math
import operator
import os
import struct
import traceback
import types
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

__all__ = [
    "CANDIDATE_GONE",
    "INVALID_TEST",
    "RAISED",
    "WRONG",
    "AssertionRunner",
    "decode",
    "encode",
    "run_assertions",
    "serve",
]

WRONG, RAISED, CANDIDATE_GONE, INVALID_TEST = 10, 11, 12, 13
"""Exit codes of the assertion runner: an assertion failed, the candidate raised, the candidate is gone, the test is
invalid."""

_LENGTH = struct.Struct("<Q")
_MOST = 64 << 20  # maximum size of a reply in bytes
_SMALL = 1 << 63
_NEVER = (AssertionError, StopIteration, StopAsyncIteration)  # these would have a meaning in the test itself
_MUTABLE = (list, dict, set, bytearray, deque)
_call: Callable[..., Any] = vars(operator).get("call") or (lambda thing, *given, **named: thing(*given, **named))


class _ChannelClosed(Exception):
    """The other process closed the channel."""


def _send(channel: int, value: Any) -> None:
    data = json.dumps(value).encode()
    data = _LENGTH.pack(len(data)) + data
    while data:
        data = data[os.write(channel, data) :]


def _receive(channel: int, most: int) -> Any:
    size = _LENGTH.unpack(_exactly(channel, _LENGTH.size))[0]
    if size > most:
        raise ValueError(f"a value of {size} bytes is too large")
    return json.loads(_exactly(channel, size))


def _exactly(channel: int, size: int) -> bytes:
    pieces = []
    while size:
        piece = os.read(channel, min(size, 1 << 20))
        if not piece:
            raise _ChannelClosed
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


# By base type, through the base type's methods: a subclass may override anything.
_ENCODERS: tuple[tuple[type, str, Callable[[Any], Any]], ...] = (
    (int, "i", lambda value: hex(int.__index__(value))),
    (float, "f", lambda value: float.hex(value)),
    (complex, "c", lambda value: [float.hex(value.real), float.hex(value.imag)]),
    (bytes, "b", lambda value: bytes.hex(value)),
    (bytearray, "a", lambda value: bytearray.hex(value)),
)
_ITERATORS: tuple[tuple[type, str, Callable[[Any], Any]], ...] = (
    (list, "l", list.__iter__),
    (tuple, "t", tuple.__iter__),
    (set, "s", set.__iter__),
    (frozenset, "z", frozenset.__iter__),
    (deque, "q", deque.__iter__),
    (type({}.keys()), "k", iter),  # only OrderedDict's views derive from these, and they have a separate order
    (type({}.values()), "v", iter),
    (type({}.items()), "m", iter),
)
# Exactly these types, no subclasses.
_EXACT: Mapping[type, tuple[str, Callable[[Any], Any]]] = {
    range: ("r", lambda value: [hex(value.start), hex(value.stop), hex(value.step)]),
    Fraction: ("F", lambda value: [hex(value.numerator), hex(value.denominator)]),
    Decimal: ("D", str),
}
_DECODERS: Mapping[str, Callable[[Any], Any]] = {
    "r": lambda parts: range(*(int(part, 16) for part in parts)),
    "F": lambda parts: Fraction(*(int(_short(part), 16) for part in parts)),
    "D": lambda text: Decimal(_short(text)),
    "i": lambda text: int(text, 16),
    "f": float.fromhex,
    "c": lambda pair: complex(float.fromhex(pair[0]), float.fromhex(pair[1])),
    "b": bytes.fromhex,
    "a": bytearray.fromhex,
}
_CONTAINERS: Mapping[str, Callable[[Any], Any]] = {
    "l": list,
    "t": tuple,
    "s": set,
    "z": frozenset,
    "q": deque,
    "k": lambda keys: dict.fromkeys(keys).keys(),
    "v": lambda values: dict(enumerate(values)).values(),
    "m": lambda items: dict(items).items(),
}


def _short(text: str) -> str:
    if len(text) > 10_000:  # arithmetic on longer numbers takes too long
        raise ValueError("a number with too many digits")
    return text


def encode(value: Any, handle: Callable[[Any], int]) -> Any:
    """Encode plain data as JSON; `handle` gives any other object a number."""
    if value is None or isinstance(value, bool) or (type(value) is int and -_SMALL < value < _SMALL):
        return value
    if type(value) is float and math.isfinite(value):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if type(value) in _EXACT:
        return [_EXACT[type(value)][0], _EXACT[type(value)][1](value)]
    for kind, tag, simple in _ENCODERS:
        if isinstance(value, kind):
            return [tag, simple(value)]
    for kind, tag, iterate in _ITERATORS:
        if isinstance(value, kind):
            return [tag, [encode(item, handle) for item in iterate(value)]]
    if isinstance(value, dict):
        return ["d", [[encode(key, handle), encode(item, handle)] for key, item in dict.items(value)]]
    number = _plain_number(value)
    return ["h", handle(value)] if number is None else encode(number, handle)


def _plain_number(value: Any) -> Any:
    """Convert a numpy scalar to a Python number; None for anything else."""
    if type(value).__module__ != "numpy" or getattr(value, "shape", None) != ():
        return None
    number = value.item()
    return number if type(number).__module__ == "builtins" else None


def decode(value: Any, thing: Callable[[int], Any]) -> Any:
    """Decode the result of `encode`; `thing` maps a handle's number to an object."""
    if not isinstance(value, list):
        return value
    tag, payload = value
    if tag in _DECODERS:
        return _DECODERS[tag](payload)
    if tag == "h":
        return thing(payload)
    if tag == "d":
        return {decode(key, thing): decode(item, thing) for key, item in payload}
    return _CONTAINERS[tag]([decode(item, thing) for item in payload])


def serve(module: types.ModuleType, code: types.CodeType, channel: int, parts: Any) -> int:
    """Run the program, then answer calls until the assertion runner closes the channel."""
    things = _Objects()
    try:
        parts.frames.without(exec, code, module.__dict__)
        _send(channel, ["ready"])
    except BaseException as error:
        _send(channel, ["raised", type(error).__name__, _message_of(error)])
        return 1
    while True:
        try:
            message = _receive(channel, 1 << 40)  # the assertion runner is trusted; memory is limited
        except _ChannelClosed:
            return 0
        try:
            reply = ["value", *_answer(message, module, things, parts)]
        except BaseException as error:
            reply = ["raised", type(error).__name__, _message_of(error)]
        _send(channel, reply)


def _message_of(error: BaseException) -> str:
    with contextlib.suppress(BaseException):
        return str(error)[:500]
    return ""


class _Objects(list[Any]):
    """Objects with handles. The same object gets the same number, so that its handle equals itself."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}

    def number(self, thing: Any) -> int:
        if id(thing) not in self._numbers:  # kept alive here, so no other object gets its id
            self._numbers[id(thing)] = len(self)
            self.append(thing)
        return self._numbers[id(thing)]


def _answer(message: Any, module: types.ModuleType, things: _Objects, parts: Any) -> tuple[Any, list[Any]]:
    handle = things.number
    verb, target, arguments, options = message
    if verb == "name":
        return encode(parts.names.find(module, target), handle), []
    if verb == "type":
        return ["h", handle(getattr(builtins, target))], []
    thing = decode(target, things.__getitem__)
    given = [decode(argument, things.__getitem__) for argument in arguments]
    named = {name: decode(value, things.__getitem__) for name, value in options.items()}
    returned = parts.frames.without(partial(_VERBS[verb], thing, *given, **named))
    result = ["h", handle(returned)] if verb == "iter" else encode(returned, handle)
    # A function may modify its arguments, so changed arguments are returned too.
    before = {**dict(enumerate(arguments)), **options}
    after = {**dict(enumerate(given)), **named}
    now = [(place, encode(value, handle)) for place, value in after.items() if isinstance(value, _MUTABLE)]
    return result, [[place, value] for place, value in now if value != before[place]]


_RAISED_LATER: dict[int, BaseException] = {}
"""Iterator's id -> exception it raised after items that were sent first."""


def _take(iterator: Any, count: int) -> list[Any]:
    """Take up to `count` items of an iterator; none at its end."""
    items: list[Any] = []
    try:
        if id(iterator) in _RAISED_LATER:
            raise _RAISED_LATER.pop(id(iterator))
        while len(items) < count:
            items.append(next(iterator))
    except BaseException as error:
        if items:
            _RAISED_LATER[id(iterator)] = error
        elif not isinstance(error, StopIteration):
            raise
    return items


_VERBS: Mapping[str, Callable[..., Any]] = {
    "call": _call,
    "get": getattr,
    "set": setattr,
    "iter": iter,
    "next": _take,
    "len": len,
    "item": lambda thing, index: thing[index],
    "str": str,
    "repr": repr,
    "format": format,
    "bool": bool,
    "isinstance": lambda kind, thing: isinstance(thing, kind),
    "eq": lambda thing, other: bool(thing == other),
    "hash": hash,
}


class _InvalidTest(Exception):
    """The test needs something impossible; the program is not to blame."""


class _Raised(Exception):
    """The candidate raised an exception that is not a builtin one."""

    from_candidate = True


class AssertionRunner:
    """The side of the assertions: sends calls to the candidate, and makes handles of its objects."""

    def __init__(self, channel: int, handles: Any) -> None:
        self._channel = channel
        self._handles = handles
        self._known: dict[int, Any] = {}
        """Number -> handle. One handle per object, because it holds the items read ahead."""
        self._receive_reply()  # wait until the program has run

    def ask(self, verb: str, target: Any, arguments: Sequence[Any] = (), options: Mapping[str, Any] = {}) -> Any:
        about = target if verb in ("name", "type") else self._encoded(target)
        given = [self._encoded(argument) for argument in arguments]
        message = [verb, about, given, {name: self._encoded(value) for name, value in options.items()}]
        try:
            _send(self._channel, message)
        except OSError:
            raise _ChannelClosed from None
        try:
            value, changed = self._receive_reply()
            for place, now in changed:
                _replace(options[place] if isinstance(place, str) else arguments[place], self._decoded(now))
            return self._decoded(value)
        except (ValueError, KeyError, TypeError, IndexError, ArithmeticError, RecursionError, MemoryError) as error:
            if getattr(error, "from_candidate", False):
                raise
            raise _Raised(f"the program sent an invalid answer: {error!r}"[:500]) from None

    def _encoded(self, value: Any) -> Any:
        return encode(value, self._handle_of)

    def _handle_of(self, thing: Any) -> int:
        """Number of the candidate's object, or of a builtin type: int, ValueError, ..."""
        if isinstance(thing, type) and thing in vars(builtins).values():
            thing = self.ask("type", thing.__name__)
            if not isinstance(thing, self._handles.ProgramObject):
                raise _Raised("the program sent an invalid answer")
        if not isinstance(thing, self._handles.ProgramObject):
            raise _InvalidTest(f"a test cannot pass {type(thing).__name__} objects to the program")
        return int(thing._handle)

    def _decoded(self, value: Any) -> Any:
        return decode(value, self._handle)

    def _handle(self, number: int) -> Any:
        if number not in self._known:
            self._known[number] = self._handles.ProgramObject(self.ask, number)
        return self._known[number]

    def _receive_reply(self) -> Any:
        kind, *rest = _receive(self._channel, _MOST)
        if kind == "raised":
            raise _as_exception(str(rest[0]), str(rest[1]))
        return rest


def _as_exception(name: str, words: str) -> Exception:
    """Convert the candidate's exception, so that a test can expect it. Never AssertionError: those are the test's."""
    known = getattr(builtins, name, None)
    if isinstance(known, type) and issubclass(known, Exception) and not issubclass(known, _NEVER):
        with contextlib.suppress(Exception):
            error = known(words)
            error.__dict__["from_candidate"] = True
            return error
    return _Raised(f"{name}: {words}")


def _replace(value: Any, now: Any) -> None:
    value.clear()
    value.update(now) if isinstance(value, dict | set) else value.extend(now)


def run_assertions(text: bytes, function: str, report: int, channel: int, parts: Any) -> int:
    """Run the assertions. Reports the reason if they fail."""
    try:
        code = compile(text, "test", "exec", dont_inherit=True)
    except BaseException as error:
        os.write(report, f"broken the test does not compile: {error!r}".encode("utf-8", "replace")[:2000])
        return INVALID_TEST
    os.close(report)
    try:
        exec(code, parts.names.of_test(code, function, AssertionRunner(channel, parts.handles).ask))
    except AssertionError as error:
        return _exit_with(WRONG, f"assertion failed: {_message_of(error) or _line_of(text, error)}")
    except _ChannelClosed:
        return CANDIDATE_GONE
    except (_InvalidTest, _Raised) as error:
        return _exit_with(INVALID_TEST if isinstance(error, _InvalidTest) else RAISED, _message_of(error))
    except BaseException as error:
        if isinstance(error, ImportError) and not hasattr(error, "from_candidate"):
            return _exit_with(INVALID_TEST, f"the test cannot import what it needs: {_message_of(error)}")
        words = f"{type(error).__name__}: {_message_of(error)}"
        return (
            _exit_with(RAISED, words)
            if hasattr(error, "from_candidate")
            else _exit_with(WRONG, f"the test raised {words}")
        )
    return 0


def _exit_with(status: int, words: str) -> int:
    os.write(2, words.encode("utf-8", "backslashreplace")[:2000])
    return status


def _line_of(text: bytes, error: BaseException) -> str:
    lines = text.decode("utf-8", "replace").splitlines()
    numbers = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "test"]
    return lines[numbers[-1] - 1].strip() if numbers and numbers[-1] else ""
