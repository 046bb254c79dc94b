"""The parameters of a handler: how its arguments are stored, and how stored arguments become a call again."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import cached_property, partial
from typing import Any, get_type_hints
from uuid import UUID

import msgspec

from penstock.errors import InvalidArgument, PayloadInvalid
from penstock.payloads import (
    Columns,
    Json,
    Stored,
    codec_of,
    encode_json,
    fault_of,
    harmless,
    is_model,
    is_pydantic,
    load_json,
)

from .context import TaskContext

__all__ = ["Arguments", "from_plain", "to_plain"]

_MISSING: Any = object()
# JSON holds these types as text or numbers. Text must not be accepted as bytes, or as a datetime.
_STRICT = (bytes, bytearray, datetime, date, time, timedelta, UUID, Decimal)
# JSON holds these types unchanged: a value of exactly its parameter's type needs no check.
_PLAIN = frozenset({str, int, bool, float, type(None)})


def to_plain(value: object) -> Json:
    """A value as JSON can hold it: dataclasses, models, datetime, UUID, Decimal, bytes and more."""
    return msgspec.to_builtins(value, str_keys=True, enc_hook=_encode_model)


def _strictly(value: object, kind: Any) -> None:
    """Raise if a value is not of a type, even if JSON would write both alike."""
    kept = msgspec.to_builtins(value, builtin_types=_STRICT, enc_hook=_encode_model)
    msgspec.convert(kept, kind, builtin_types=_STRICT, dec_hook=_decode_model)


def from_plain(plain: Json, kind: Any) -> Any:
    """Convert a JSON value to a type."""
    return msgspec.convert(plain, kind, str_keys=True, dec_hook=_decode_model)


def _encode_model(value: object) -> Json:
    if is_pydantic(type(value)):
        with _harmless_errors():
            return codec_of(type(value)).encode(value)
    raise TypeError(f"a {type(value).__qualname__} cannot be stored as JSON")


def _decode_model(kind: type, plain: Json) -> Any:
    if is_pydantic(kind):
        with _harmless_errors():
            return codec_of(kind).decode(plain)
    if isinstance(plain, kind):
        return plain
    raise TypeError(f"a {kind.__qualname__} cannot be read from JSON")


@contextmanager
def _harmless_errors() -> Iterator[None]:
    """Remove the quoted values from errors of a model, because msgspec copies the text into its own error."""
    try:
        yield
    except ValueError as exc:
        fault, cause = fault_of(exc), harmless(exc)
        raise ValueError(fault) from cause


class Arguments:
    """Binds calls of one handler. Types are resolved at the first use, when all modules are imported."""

    def __init__(self, function: Callable[..., Any], task_name: str) -> None:
        self._function = function
        self._task_name = task_name
        try:
            self._parameters = inspect.signature(function).parameters
        except (TypeError, ValueError) as exc:
            raise InvalidArgument(
                f"task {task_name!r} has no signature that could be looked at: {exc}"
            ) from exc
        for name, parameter in self._parameters.items():
            if parameter.kind is parameter.VAR_POSITIONAL:
                raise InvalidArgument(
                    f"task {task_name!r} takes *{name}: arguments of a task have names",
                    hint="take a list instead",
                )
        self.takes_any = any(p.kind is p.VAR_KEYWORD for p in self._parameters.values())

    @cached_property
    def _hints(self) -> dict[str, Any]:
        try:
            return get_type_hints(inner_function(self._function), include_extras=True)
        except NameError as exc:
            raise InvalidArgument(
                f"an annotation of task {self._task_name!r} names {exc.name!r}, unknown to its module",
                hint="import it in the module, not under TYPE_CHECKING only",
            ) from exc
        except Exception as exc:
            raise InvalidArgument(
                f"an annotation of task {self._task_name!r} cannot be read: {type(exc).__name__}: {exc}"
            ) from exc

    @cached_property
    def context_name(self) -> str | None:
        """The parameter that gets the context, if any."""
        return next((name for name in self._parameters if self._hints.get(name) is TaskContext), None)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The parameters that a caller gives, in order."""
        return tuple(
            name
            for name, parameter in self._parameters.items()
            if name != self.context_name and parameter.kind is not parameter.VAR_KEYWORD
        )

    @cached_property
    def _positional_only(self) -> tuple[str, ...]:
        only = inspect.Parameter.POSITIONAL_ONLY
        return tuple(name for name, parameter in self._parameters.items() if parameter.kind is only)

    @cached_property
    def _positional(self) -> tuple[str, ...]:
        keyword_only = inspect.Parameter.KEYWORD_ONLY
        return tuple(name for name in self.names if self._parameters[name].kind is not keyword_only)

    @property
    def required(self) -> frozenset[str]:
        """The parameters without a default."""
        return self._required

    @cached_property
    def _required(self) -> frozenset[str]:
        empty = inspect.Parameter.empty
        return frozenset(name for name in self.names if self._parameters[name].default is empty)

    @cached_property
    def _kinds(self) -> dict[str, Any]:
        return {name: self._hints.get(name, Any) for name in self.names}

    @cached_property
    def _plain_kinds(self) -> dict[str, Any]:
        """The types of the parameters that take a JSON type, of which a value needs no check."""
        return {name: kind for name, kind in self._kinds.items() if _is_plain(kind)}

    @cached_property
    def _plain_shape(self) -> tuple[tuple[str, ...], tuple[Any, ...]]:
        """The required parameters, and those of their types that are JSON types."""
        names = tuple(name for name in self.names if name in self._required)
        return names, tuple(self._plain_kinds[name] for name in names if name in self._plain_kinds)

    @cached_property
    def _plain_columns(self) -> Columns | None:
        names, kinds = self._plain_shape
        return (
            {name: {kind} for name, kind in zip(names, kinds, strict=True)}
            if len(names) == len(kinds)
            else None
        )

    @cached_property
    def _extra_kind(self) -> Any:
        """The type of additional keyword arguments, if the handler takes `**kwargs`."""
        extra = next((n for n, p in self._parameters.items() if p.kind is p.VAR_KEYWORD), "")
        return self._hints.get(extra, Any)

    @cached_property
    def _model(self) -> type[msgspec.Struct]:
        """A struct with a field for each parameter: it converts, and finds missing or extra arguments."""
        # The fields have names of their own, because some names have a meaning in a class.
        fields: list[Any] = [
            (f"f{n}", kind) if name in self._required else (f"f{n}", kind, msgspec.field(default=_MISSING))
            for n, (name, kind) in enumerate(self._kinds.items())
        ]
        rename = {f"f{n}": name for n, name in enumerate(self._kinds)}
        return msgspec.defstruct(
            "Arguments", fields, kw_only=True, rename=rename, forbid_unknown_fields=not self.takes_any
        )

    @cached_property
    def _attributes(self) -> tuple[tuple[str, str], ...]:
        return tuple((name, f"f{n}") for n, name in enumerate(self.names))

    def _given(self, found: Any) -> dict[str, Any]:
        """The arguments that a struct of that model holds."""
        given = {}
        for name, attribute in self._attributes:
            value = getattr(found, attribute)
            if value is not _MISSING:
                given[name] = value
        return given

    @cached_property
    def result_kind(self) -> Any:
        return self._hints.get("return", Any)

    # When a task is enqueued

    def bind(
        self, positional: Sequence[object], named: Mapping[str, object], *, without: str | None = None
    ) -> dict[str, object]:
        """Bind the arguments of a call by name; an error says what does not fit. without: may be missing."""
        if not positional and named.keys() == self._required:
            return dict(named)
        if len(positional) > len(self._positional):
            raise self._misfit(f"takes {len(self._positional)} positional arguments, not {len(positional)}")
        bound: dict[str, object] = dict(zip(self._positional, positional, strict=False))
        for name, value in named.items():
            if name in bound:
                raise self._misfit(f"got {name!r} twice")
            if name not in self._kinds and not (self.takes_any and name != self.context_name):
                raise self._misfit(f"has no parameter {name!r}")
            bound[name] = value
        missing = [n for n in self.names if n in self._required and n not in bound and n != without]
        if missing:
            raise self._misfit(f"needs {', '.join(map(repr, missing))}")
        return bound

    def plain(self, named: dict[str, Any]) -> dict[str, Json] | None:
        """bind() and encode() of arguments given by name, in order, of JSON types; None for all others."""
        names, kinds = self._plain_shape
        if tuple(named) == names and tuple(map(type, named.values())) == kinds:
            return named.copy()
        return None

    def are_plain(self, columns: Columns) -> bool:
        """Whether many calls give the required arguments by name, each of the JSON type of its parameter."""
        return columns == self._plain_columns

    def encode(self, bound: Mapping[str, object]) -> dict[str, Json]:
        """Encode the arguments as JSON. Each is decoded again, so that the handler gets an equal value."""
        plain, kinds = dict[str, Json](), self._plain_kinds
        for name, value in bound.items():
            plain[name] = value if kinds.get(name) is type(value) else self._encoded(name, value)
        return plain

    def _encoded(self, name: str, value: object) -> Json:
        kind = self._kinds.get(name, self._extra_kind)
        if kind is Any or (kind is type(value) and kind in _PLAIN):  # the latter: one of **kwargs
            return value
        try:
            _strictly(value, kind)
            plain = to_plain(value)
            back = from_plain(plain, kind)
        except (TypeError, ValueError, msgspec.ValidationError, InvalidArgument) as exc:
            fault = f"got {self._which(name, value)}, which does not fit {_name(kind)}: {fault_of(exc)}"
            raise self._misfit(fault) from harmless(exc)
        if not _is_same(value, back):
            other = "another value" if type(value) is type(back) else f"one of type {type(back).__qualname__}"
            raise self._misfit(f"got {self._which(name, value)}, which would come back as {other}")
        return plain

    def _which(self, name: str, value: object) -> str:
        """An argument by its name, position and type. The value is left out, because it may be private."""
        place = f"argument {self.names.index(name) + 1}, " if name in self.names else ""
        return f"{name!r} ({place}of type {type(value).__qualname__})"

    def with_defaults(self, bound: Mapping[str, object]) -> dict[str, object]:
        """The arguments of a call, and the defaults of the others."""
        defaults = {n: self._parameters[n].default for n in self.names if n not in self._required}
        return defaults | dict(bound)

    def canonical(self, bound: Mapping[str, object]) -> Json:
        """Encode the arguments so that equal arguments have equal text: as decoded, in order."""
        plain = {}
        for name in sorted(bound):
            kind = self._kinds.get(name, self._extra_kind)
            try:
                plain[name] = _ordered(from_plain(to_plain(bound[name]), kind))
            except (TypeError, ValueError, msgspec.ValidationError) as exc:
                fault = f"is unique by {self._which(name, bound[name])}: {fault_of(exc)}"
                raise self._misfit(fault) from harmless(exc)
        return plain

    def check_names(self, names: Iterable[str], what: str) -> None:
        """Refuse names that are not parameters."""
        if self.takes_any:
            return
        known = {name for name, parameter in self._parameters.items() if not _is_context(parameter)}
        if unknown := [name for name in names if name not in known]:
            raise InvalidArgument(
                f"{what} of task {self._task_name!r} is by {unknown[0]!r}, which it does not take"
            )

    # When the worker runs the task

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[Any]:
        return msgspec.json.Decoder(self._model, dec_hook=_decode_model)

    def decode_stored(self, stored: Stored) -> dict[str, Any]:
        """Decode the stored payload to the arguments of the handler; mostly in one step."""
        if isinstance(stored, bytes):
            return self.decode(stored)
        if not self.takes_any:
            try:
                found = self._decoder.decode(stored)
            except (ValueError, TypeError, RecursionError):
                pass  # the slower path below says what is wrong
            else:
                return self._given(found)
        try:
            plain = load_json(stored)
        except (ValueError, RecursionError) as exc:
            raise PayloadInvalid(
                f"the payload of task {self._task_name!r} cannot be read by Python: {exc}"
            ) from exc
        return self.decode(plain)

    def decode(self, plain: Json) -> dict[str, Any]:
        """Decode a payload to the arguments of the handler."""
        if not plain and not self._required and plain == {}:
            return {}
        if not isinstance(plain, dict):
            raise PayloadInvalid(
                f"the payload of task {self._task_name!r} must be an object of arguments, not of"
                f" type {type(plain).__name__}"
            )
        try:
            found = from_plain(plain, self._model)
        except (msgspec.ValidationError, TypeError, ValueError) as exc:
            raise PayloadInvalid(
                f"the payload of task {self._task_name!r} does not fit {self.signature}: {fault_of(exc)}"
            ) from harmless(exc)
        arguments = self._given(found)
        if self.takes_any:
            extra = {name: value for name, value in plain.items() if name not in self._kinds}
            arguments |= from_plain(extra, dict[str, self._extra_kind])  # type: ignore[name-defined]
        return arguments

    def call(self, arguments: dict[str, Any], context: Any) -> Any:
        """Call the handler."""
        if self.context_name is not None:
            arguments[self.context_name] = context
        if not self._positional_only:
            return self._function(**arguments)
        positional = [arguments.pop(name, self._parameters[name].default) for name in self._positional_only]
        return self._function(*positional, **arguments)

    @property
    def signature(self) -> str:
        shown = [name if name in self._required else f"{name}=..." for name in self.names]
        return f"({', '.join([*shown, '**'] if self.takes_any else shown)})"

    def _misfit(self, fault: str) -> InvalidArgument:
        return InvalidArgument(f"task {self._task_name!r} {fault}: its arguments are {self.signature}")


def _is_same(value: Any, back: Any) -> bool:  # noqa: PLR0911
    """Whether the decoded value equals the given one. A list may stand for a tuple, a dict for a model."""
    if type(value) is type(back) and _equal(value, back):
        return True
    if isinstance(value, Mapping):
        if not isinstance(back, dict):
            return is_model(type(back))
        return value.keys() == back.keys() and all(_is_same(value[key], back[key]) for key in value)
    if isinstance(value, list | tuple) and isinstance(back, list | tuple):
        return len(value) == len(back) and all(map(_is_same, value, back))
    if isinstance(value, datetime) and isinstance(back, datetime):
        # In the repeated hour of autumn, Python never treats datetimes of two tzinfo objects as equal.
        return _said(value) == _said(back)
    if type(value) is type(back) and is_model(type(value)):
        names = [field.name for field in _fields(value)]
        return all(_is_same(getattr(value, name), getattr(back, name)) for name in names)
    if isinstance(value, set | frozenset | list | tuple) and isinstance(back, set | frozenset):
        return set(value) == back
    plain = back.value if isinstance(back, Enum) else back
    return not is_model(type(value)) and bool(_equal(value, plain) or (value != value and plain != plain))  # noqa: PLR0124


def _is_plain(kind: Any) -> bool:
    return isinstance(kind, type) and kind in _PLAIN


def _equal(left: Any, right: Any) -> bool:
    return bool(left == right)


def _fields(model: Any) -> Sequence[Any]:
    if dataclasses.is_dataclass(model):
        return dataclasses.fields(model)
    return msgspec.structs.fields(model) if isinstance(model, msgspec.Struct) else ()


def _said(moment: datetime) -> tuple[datetime, timedelta | None]:
    return moment.replace(tzinfo=None, fold=0), moment.utcoffset()


def _ordered(value: Any) -> Json:
    """JSON of a value, equal for equal values: sets and dicts are sorted."""
    if isinstance(value, set | frozenset):
        return sorted(encode_json(_ordered(item)) for item in value)
    if isinstance(value, dict):
        items = {str(to_plain(key)): _ordered(item) for key, item in value.items()}
        return {key: items[key] for key in sorted(items)}
    if isinstance(value, list | tuple):
        return [_ordered(item) for item in value]
    if fields := _fields(value):
        return {field.name: _ordered(getattr(value, field.name)) for field in fields}
    return to_plain(value)


def inner_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function that is finally called: of a partial, a callable object, or a method."""
    while isinstance(function, partial):
        function = function.func
    if inspect.isroutine(function) or inspect.isclass(function):
        inner: Callable[..., Any] = getattr(function, "__func__", function)
        return inner
    call: Callable[..., Any] = type(function).__call__
    return call


def _is_context(parameter: inspect.Parameter) -> bool:
    """Decide by the annotation as written, because types cannot be resolved yet."""
    annotation = parameter.annotation
    return annotation is TaskContext or (isinstance(annotation, str) and annotation.endswith("TaskContext"))


def _name(kind: Any) -> str:
    return getattr(kind, "__qualname__", None) or str(kind)
