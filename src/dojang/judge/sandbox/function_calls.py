"""Calling the functions of a program from another process, so that assertions about them cannot be tampered with.

The candidate runs the program and answers; the examiner runs the assertions and asks. What crosses is plain data,
copied: an object that claims to equal everything has no say, and what an assertion compares with is nowhere in the
candidate's memory. Anything else crosses as a handle, good for passing back, calling, attributes and iterating.

Loaded by zygote.py in the interpreter that judges programs: the standard library only.
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

__all__ = ["GONE", "RAISED", "UNFIT", "WRONG", "decode", "encode", "examine", "serve"]

WRONG, RAISED, GONE, UNFIT = 10, 11, 12, 13
"""How an examiner ends when not well: an assertion failed, the candidate raised, it is gone, the test is no test."""

_LENGTH = struct.Struct("<Q")
_MOST = 64 << 20  # bytes of a reply
_SMALL = 1 << 63
_NEVER = (AssertionError, StopIteration, StopAsyncIteration)  # these would mean something in the test itself
_MUTABLE = (list, dict, set, bytearray, deque)
_call: Callable[..., Any] = vars(operator).get("call") or (lambda thing, *given, **named: thing(*given, **named))


class _Gone(Exception):
    """The other side has hung up."""


def _send(channel: int, value: Any) -> None:
    data = json.dumps(value).encode()
    data = _LENGTH.pack(len(data)) + data
    while data:
        data = data[os.write(channel, data) :]


def _receive(channel: int, most: int) -> Any:
    size = _LENGTH.unpack(_exactly(channel, _LENGTH.size))[0]
    if size > most:
        raise ValueError(f"a value of {size} bytes")
    return json.loads(_exactly(channel, size))


def _exactly(channel: int, size: int) -> bytes:
    pieces = []
    while size:
        piece = os.read(channel, min(size, 1 << 20))
        if not piece:
            raise _Gone
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


# Each by its base type, through the base type's own methods: a subclass may claim anything.
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
    (type({}.keys()), "k", iter),  # no class derives from these but those of OrderedDict, with an order of its own
    (type({}.values()), "v", iter),
    (type({}.items()), "m", iter),
)
# These only if they are exactly that.
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
    if len(text) > 10_000:  # arithmetic on longer ones would keep the examiner busy
        raise ValueError("a number of too many digits")
    return text


def encode(value: Any, handle: Callable[[Any], int]) -> Any:
    """Plain data as JSON; `handle` numbers anything else."""
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
    """A scalar of numpy's as Python's own number; None if it is none."""
    if type(value).__module__ != "numpy" or getattr(value, "shape", None) != ():
        return None
    number = value.item()
    return number if type(number).__module__ == "builtins" else None


def decode(value: Any, thing: Callable[[int], Any]) -> Any:
    """What `encode` was given; `thing` finds what a number stands for."""
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
    """Run the program, then answer until the examiner hangs up."""
    things = _Things()
    try:
        parts.frames.without(exec, code, module.__dict__)
        _send(channel, ["ready"])
    except BaseException as error:
        _send(channel, ["raised", type(error).__name__, _words_of(error)])
        return 1
    while True:
        try:
            message = _receive(channel, 1 << 40)  # the examiner is trusted; memory is limited
        except _Gone:
            return 0
        try:
            reply = ["value", *_answer(message, module, things, parts)]
        except BaseException as error:
            reply = ["raised", type(error).__name__, _words_of(error)]
        _send(channel, reply)


def _words_of(error: BaseException) -> str:
    with contextlib.suppress(BaseException):
        return str(error)[:500]
    return ""


class _Things(list[Any]):
    """What the examiner has handles for. The same thing gets the same number, so that it equals itself over there."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}

    def number(self, thing: Any) -> int:
        if id(thing) not in self._numbers:  # kept here, so no other thing can come by its id
            self._numbers[id(thing)] = len(self)
            self.append(thing)
        return self._numbers[id(thing)]


def _answer(message: Any, module: types.ModuleType, things: _Things, parts: Any) -> tuple[Any, list[Any]]:
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
    # A function may work by changing its arguments, so what has become of them goes back as well.
    before = {**dict(enumerate(arguments)), **options}
    after = {**dict(enumerate(given)), **named}
    now = [(place, encode(value, handle)) for place, value in after.items() if isinstance(value, _MUTABLE)]
    return result, [[place, value] for place, value in now if value != before[place]]


_RAISED_LATER: dict[int, BaseException] = {}
"""By the id of an iterator, what it raised after items that were sent first."""


def _take(iterator: Any, count: int) -> list[Any]:
    """Up to `count` items of an iterator; none at its end."""
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


class _Unfit(Exception):
    """The test asks for what cannot be done; no program is to blame."""


class _Raised(Exception):
    """The candidate raised something that Python has no name for."""

    from_candidate = True


class _Examiner:
    def __init__(self, channel: int, handles: Any) -> None:
        self._channel = channel
        self._handles = handles
        self._known: dict[int, Any] = {}
        """By its number, the handle of every object: there is one, since it knows which items were read ahead."""
        self._hear()  # the program has been run

    def ask(self, verb: str, target: Any, arguments: Sequence[Any] = (), options: Mapping[str, Any] = {}) -> Any:
        about = target if verb in ("name", "type") else self._encoded(target)
        given = [self._encoded(argument) for argument in arguments]
        message = [verb, about, given, {name: self._encoded(value) for name, value in options.items()}]
        try:
            _send(self._channel, message)
        except OSError:
            raise _Gone from None
        try:
            value, changed = self._hear()
            for place, now in changed:
                _replace(options[place] if isinstance(place, str) else arguments[place], self._decoded(now))
            return self._decoded(value)
        except (ValueError, KeyError, TypeError, IndexError, ArithmeticError, RecursionError, MemoryError) as error:
            if getattr(error, "from_candidate", False):
                raise
            raise _Raised(f"the program answered something unintelligible: {error!r}"[:500]) from None

    def _encoded(self, value: Any) -> Any:
        return encode(value, self._handle_of)

    def _handle_of(self, thing: Any) -> int:
        """The candidate's number for its own thing, or for a type of Python's own: int, ValueError, ..."""
        if isinstance(thing, type) and thing in vars(builtins).values():
            thing = self.ask("type", thing.__name__)
            if not isinstance(thing, self._handles.ProgramObject):
                raise _Raised("the program answered something unintelligible")
        if not isinstance(thing, self._handles.ProgramObject):
            raise _Unfit(f"a test cannot pass {type(thing).__name__} objects to the program")
        return int(thing._handle)

    def _decoded(self, value: Any) -> Any:
        return decode(value, self._handle)

    def _handle(self, number: int) -> Any:
        if number not in self._known:
            self._known[number] = self._handles.ProgramObject(self.ask, number)
        return self._known[number]

    def _hear(self) -> Any:
        kind, *rest = _receive(self._channel, _MOST)
        if kind == "raised":
            raise _as_exception(str(rest[0]), str(rest[1]))
        return rest


def _as_exception(name: str, words: str) -> Exception:
    """The candidate's exception, so that a test can expect it. Never an AssertionError: those are the test's own."""
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


def examine(text: bytes, function: str, report: int, channel: int, parts: Any) -> int:
    """Run the assertions; says why not, if it does not end well."""
    try:
        code = compile(text, "test", "exec", dont_inherit=True)
    except BaseException as error:
        os.write(report, f"broken the test does not compile: {error!r}".encode("utf-8", "replace")[:2000])
        return UNFIT
    os.close(report)
    try:
        exec(code, parts.names.of_test(code, function, _Examiner(channel, parts.handles).ask))
    except AssertionError as error:
        return _ended(WRONG, f"assertion failed: {_words_of(error) or _line_of(text, error)}")
    except _Gone:
        return GONE
    except (_Unfit, _Raised) as error:
        return _ended(UNFIT if isinstance(error, _Unfit) else RAISED, _words_of(error))
    except BaseException as error:
        if isinstance(error, ImportError) and not hasattr(error, "from_candidate"):
            return _ended(UNFIT, f"the test cannot import what it needs: {_words_of(error)}")
        words = f"{type(error).__name__}: {_words_of(error)}"
        return _ended(RAISED, words) if hasattr(error, "from_candidate") else _ended(WRONG, f"the test raised {words}")
    return 0


def _ended(status: int, words: str) -> int:
    os.write(2, words.encode("utf-8", "backslashreplace")[:2000])
    return status


def _line_of(text: bytes, error: BaseException) -> str:
    lines = text.decode("utf-8", "replace").splitlines()
    numbers = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "test"]
    return lines[numbers[-1] - 1].strip() if numbers and numbers[-1] else ""
