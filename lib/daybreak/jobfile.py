"""The job file as text: YAML in which a text stays what was typed, and nothing that was typed is dropped in silence.

What a key takes decides how its value is read. Where a text is declared, an unquoted ``2026-11-30``, ``0123`` or ``on``
is that text; elsewhere it is read by the core schema of YAML 1.2 (``true``, ``null``, ``0.5``, and no dates).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel

from daybreak.errors import ConfigError

_NULL = re.compile(r"~|null|Null|NULL|")
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_TAG = "tag:yaml.org,2002:"
_OPEN = (int, float, bool, Any)
_ASSIGNMENT = re.compile(r"""((?:"[^"]*"|[^".=]+)(?:\.(?:"[^"]*"|[^".=]+))*)=(.*)""", re.DOTALL)
_STEP = re.compile(r'"([^"]*)"|([^".]+)')
_BREAKS = {"\x85": "U+0085", "\u2028": "U+2028", "\u2029": "U+2029"}  # YAML 1.1 ends a line there, and few editors do
_WIDE = (b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")


class _Loader(yaml.SafeLoader):
    """Resolves what the core schema of YAML 1.2 does, and the merge key."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012  (PyYAML's own name, of a class)


for _kind, _form in {"null": _NULL, "bool": _BOOL, "int": _INT, "float": _FLOAT, "merge": re.compile("<<")}.items():
    _Loader.add_implicit_resolver(_TAG + _kind, re.compile(rf"(?:{_form.pattern})\Z"), None)


class _RefusedError(Exception):
    """What is wrong with a job file or an override, with the key."""


def read(path: str | Path, model: type[BaseModel]) -> dict[str, Any]:
    """The keys and values of a job file, as ``model`` declares them. Raises ConfigError for what is no job file."""
    try:
        text = _decoded(Path(path).read_bytes())
        node = yaml.compose(text, Loader=_Loader)
        if node is None:
            raise _RefusedError("is empty")
        if not isinstance(node, yaml.MappingNode):
            raise _RefusedError(f"must hold keys and values at its top, and it is a {_NAMES[type(node)]}")
        document = _Reader(text).value(node, (model,), "")
    except OSError as error:
        raise ConfigError(
            f"cannot read the job file {str(path)!r}: {error.strerror}", fix="give an existing YAML file"
        ) from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {_told(error)}", fix=_AS_TEXT) from None
    except _RefusedError as refused:
        raise ConfigError(f"{path} {refused}") from None
    assert isinstance(document, dict)
    return document


def override(document: dict[str, Any], assignments: Sequence[str], model: type[BaseModel]) -> None:
    """Lay ``a.b=value`` over a document. Raises ConfigError for what is no such thing, or sets a key twice."""
    seen: dict[tuple[str, ...], str] = {}
    for assignment in assignments:
        try:
            path, options, text = _assignment(assignment, model)
            for earlier, said in seen.items():
                if earlier[: len(path)] == path[: len(earlier)]:
                    raise _RefusedError(f"sets what --set {said!r} has set; a key is set once")
            _lay(document, path, _typed(text, options, ".".join(path)))
        except yaml.YAMLError as error:
            raise ConfigError(f"--set {assignment!r} is not YAML: {_told(error)}", fix=_AS_TEXT) from None
        except _RefusedError as refused:
            raise ConfigError(f"--set {assignment!r} {refused}", fix="--set shards.rows=1000") from None
        seen[path] = assignment


_NAMES = {yaml.ScalarNode: "single value", yaml.SequenceNode: "list", yaml.MappingNode: "mapping"}
_AS_TEXT = "put a text in quotes that holds ': ' or ' #', or begins with one of { [ & * ! | > % @ `"


def _decoded(raw: bytes) -> str:
    if raw.startswith(_WIDE) or b"\0" in raw:
        raise _RefusedError("is not text in UTF-8 (it looks like UTF-16): save it as UTF-8")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        told = f"line {line}, byte {raw[error.start]:#04x}"
        raise _RefusedError(f"is not text in UTF-8 ({told}): save it as UTF-8") from None
    for character, name in _BREAKS.items():
        if character in text:
            line = text[: text.index(character)].count("\n") + 1
            raise _RefusedError(f"holds the invisible line break {name} in line {line}: remove it")
    return text


def _told(error: yaml.YAMLError) -> str:
    if "expected a single document" in str(getattr(error, "context", "")):
        return f"it holds a second document, and a job is one: {getattr(error, 'problem_mark', '')}"
    return str(error)


# -- what a key takes


def _options(annotation: Any) -> tuple[Any, ...]:
    """The alternatives that a declared type has, without their annotations."""
    if get_origin(annotation) is Annotated:
        return _options(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return tuple(dict.fromkeys(type(value) for value in get_args(annotation)))
    if annotation is None or get_origin(annotation) in (list, dict) or not get_args(annotation):
        return (annotation,)
    return tuple(option for part in get_args(annotation) for option in _options(part))


def _inner(options: tuple[Any, ...], key: str) -> tuple[Any, ...]:
    """What a key of a mapping takes; anything, if it is not known."""
    for option in options:
        if isinstance(option, type) and issubclass(option, BaseModel) and key in option.model_fields:
            return _options(option.model_fields[key].annotation)
        if get_origin(option) is dict:
            return _options(get_args(option)[1])
    return (Any,)


def _item(options: tuple[Any, ...]) -> tuple[Any, ...]:
    return next((_options(get_args(option)[0]) for option in options if get_origin(option) is list), (Any,))


def _is_open(options: tuple[Any, ...]) -> bool:
    """Whether a scalar may be other than a text."""
    return any(option in _OPEN for option in options)


def _is_nested(options: tuple[Any, ...]) -> bool:
    return any(
        get_origin(option) in (list, dict) or (isinstance(option, type) and issubclass(option, BaseModel))
        for option in options
    )


# -- values


class _Reader:
    """Makes values of nodes; ``text`` is what they were parsed from."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._inside: list[yaml.Node] = []

    def value(self, node: yaml.Node, options: tuple[Any, ...], at: str) -> Any:
        if node in self._inside:
            raise _RefusedError(f"has an alias in itself, at {at} (line {_line(node)})")
        self._inside.append(node)
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, options, at)
            if isinstance(node, yaml.SequenceNode):
                _refuse_tag(node, "seq", at)
                return [self.value(item, _item(options), f"{at}[{i}]") for i, item in enumerate(node.value)]
            assert isinstance(node, yaml.ScalarNode)
            return self._scalar(node, options, at)
        finally:
            self._inside.pop()

    def _mapping(self, node: yaml.MappingNode, options: tuple[Any, ...], at: str) -> dict[str, Any]:
        _refuse_tag(node, "map", at)
        own, merged, lines = dict[str, Any](), dict[str, Any](), dict[str, int]()
        for key_node, child in node.value:
            key = self._key(key_node, at)
            path = f"{at}.{key}" if at else key
            if key in lines:
                raise _RefusedError(f"has the key {path!r} twice, in lines {lines[key]} and {_line(key_node)}")
            lines[key] = _line(key_node)
            if key_node.tag == _TAG + "merge":
                for one in child.value if isinstance(child, yaml.SequenceNode) else [child]:
                    if not isinstance(one, yaml.MappingNode):
                        raise _RefusedError(f"merges what is no mapping, at {path} (line {_line(one)})")
                    merged = {**self.value(one, options, at), **merged}
            else:
                own[key] = self.value(child, _inner(options, key), path)
        return {**merged, **own}

    def _key(self, node: yaml.Node, at: str) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise _RefusedError(f"has a {_NAMES[type(node)]} for a key, in {at or 'its top'} (line {_line(node)})")
        return _whole(node.value, at)

    def _scalar(self, node: yaml.ScalarNode, options: tuple[Any, ...], at: str) -> Any:
        kind = _refuse_tag(node, "str int float bool null merge", at)
        if kind == "null":
            return None
        if _is_open(options) and kind not in ("str", "merge"):
            return _core(node.value, at)
        if node.style is None:
            self._refuse_cut(node, at)
        return _whole(node.value, at)

    def _refuse_cut(self, node: yaml.ScalarNode, at: str) -> None:
        """A `` #`` ends an unquoted text. It is taken for a comment if a space follows it and no quote is open."""
        rest = self.text[node.end_mark.index :].split("\n", 1)[0].rstrip()
        comment = rest.lstrip()
        open_quote = any(node.value.count(quote) % 2 for quote in "'\"")
        if comment.startswith("#") and (open_quote or comment[1:2] not in ("", " ", "#", "\t")):
            raise _RefusedError(
                f"has a '#' in line {_line(node)}, and YAML cuts {at} there: {(node.value + rest)!r}; put the value in"
                " quotes if the '#' is part of it, or a space after the '#' if a comment begins there"
            )


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _refuse_tag(node: yaml.Node, known: str, at: str) -> str:
    """The node's kind, which is one of those known."""
    kind = str(node.tag).removeprefix(_TAG)
    if kind not in known.split():
        raise _RefusedError(f"has the tag {node.tag!r} at {at} (line {_line(node)}): write the value itself")
    return kind


def _whole(text: str, at: str) -> str:
    """JSON writes a character above U+FFFF as two escapes, which YAML takes for two characters."""
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise _RefusedError(f"has half a character (an escape like \\ud800) at {at}") from None


def _core(text: str, at: str) -> Any:
    """A scalar by the core schema of YAML 1.2; a text that is none of its kinds stays one."""
    if _NULL.fullmatch(text):
        return None
    if _BOOL.fullmatch(text):
        return text.lower() == "true"
    try:
        if _INT.fullmatch(text):
            return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
        return float(re.sub(r"\.(?=inf|nan)", "", text.lower())) if _FLOAT.fullmatch(text) else text
    except ValueError as error:  # Python reads 4300 digits
        raise _RefusedError(f"has a number that is none at {at}: {error}") from None


# -- overrides


def _assignment(text: str, model: type[BaseModel]) -> tuple[tuple[str, ...], tuple[Any, ...], str]:
    """The path of an override, what its key takes, and the text that was typed for it."""
    match = _ASSIGNMENT.fullmatch(text)
    steps = [quoted or plain for quoted, plain in _STEP.findall(match[1])] if match else []
    if match is None or not all(steps) or any(step != step.strip() for step in steps):
        raise _RefusedError("is not of the form key.subkey=value, without spaces around the keys")
    path, options = list[str](), tuple[Any, ...]((model,))
    while steps:
        named = any(get_origin(option) is dict and get_args(option)[1] is str for option in options)
        key = ".".join(steps) if named else steps[0]  # the names of a model's inputs may hold dots
        options, steps = _inner(options, key), [] if named else steps[1:]
        path.append(key)
    return tuple(path), options, match[2]


def _typed(text: str, options: tuple[Any, ...], at: str) -> Any:
    """The value that was typed for a key: a text is taken to the letter, and so is all that is no other value."""
    begins = text.lstrip()[:1]
    if begins and begins in ("[{'\"" if Any in options else "[{" if _is_nested(options) else ""):
        return _parsed(text, options, at)
    if _is_open(options):
        return value if not isinstance(value := _core(text.strip(), at), str) else text
    return None if _is_nothing(text, options) else text


def _is_nothing(text: str, options: tuple[Any, ...]) -> bool:
    """Whether a text stands for no value, where there may be none."""
    if not text:
        return any(option in (None, NoneType) for option in options) or _is_nested(options)
    nothing = any(option in (None, NoneType) for option in options) and _NULL.fullmatch(text) is not None
    if nothing and timedelta not in options:
        raise _RefusedError("may mean no value or that text: leave the value empty, or put the text in the job file")
    return nothing


def _parsed(text: str, options: tuple[Any, ...], at: str) -> Any:
    end = 0
    for token in yaml.scan(text, Loader=_Loader):
        if "#" in text[end : token.start_mark.index]:
            raise _RefusedError("holds a '#' that YAML takes for a comment: put the text in quotes")
        end = token.end_mark.index
    node = yaml.compose(text, Loader=_Loader)
    assert node is not None
    return _Reader(text).value(node, options, at)


def _lay(document: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for key in path[:-1]:
        if document.get(key) is None:
            document[key] = {}
        if not isinstance(document[key], dict):
            raise _RefusedError(f"goes below {key!r}, which holds {document[key]!r} and has no keys")
        document = document[key]
    document[path[-1]] = value
