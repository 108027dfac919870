"""Parse a resource file, or report every mistake in it with its path and in plain words.

Strategy: the CRD's schema is the only description of the fields. A cluster drops fields that the schema does not have; here
they are mistakes, so that a misspelled field is found.
"""

from __future__ import annotations

import difflib
import importlib.resources
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, cast

import yaml
from jsonschema import Draft202012Validator, ValidationError, validators
from jsonschema.protocols import Validator

from queryable_app.config.topic_spec import SpecError, TopicSpec, parse_spec

API_VERSION: Final = "queryabletopics.io/v1alpha1"
KIND: Final = "QueryableTopic"
_FILE_BYTES_MAX: Final = 1024 * 1024
_CHECKOUT_CRD: Final = Path(__file__).resolve().parents[3] / "crds" / "queryabletopic.yaml"

# What messages call the schema's types.
_TYPES: Final = {
    "object": "a group of fields",
    "array": "a list",
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
}


class ResourceError(Exception):
    """The file is not a valid resource; one line for each mistake."""


@dataclass(frozen=True, slots=True)
class Resource:
    """Hold a valid resource: its name, its document, and the parsed spec."""

    name: str
    document: Mapping[str, Any]
    spec: TopicSpec


def load_resource(file: Path) -> Resource:
    """Return the resource in a file. Raises ResourceError."""
    return parse_resource(_read(file), str(file))


def parse_resource(text: str, where: str) -> Resource:
    """Return the resource in a text. Raises ResourceError, whose lines begin with `where`."""
    document = _single_document(text, where)
    mistakes = sorted(set(_mistakes(document)))
    if mistakes:
        raise ResourceError("\n".join(f"{where}: {mistake}" for mistake in mistakes))
    try:
        spec = parse_spec(document["spec"])
    except SpecError as e:
        raise ResourceError(f"{where}: {e}") from e
    return Resource(str(document["metadata"]["name"]), document, spec)


@cache
def crd() -> Mapping[str, Any]:
    """Return the CustomResourceDefinition: from the installed package, or from the checkout."""
    packaged = importlib.resources.files("queryable_app") / "crds" / "queryabletopic.yaml"
    text = packaged.read_text() if packaged.is_file() else _CHECKOUT_CRD.read_text()
    # The parser in C, which not every build of PyYAML has, saves more than half of the time of reading a resource.
    loaded: Mapping[str, Any] = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
    return loaded


def _read(file: Path) -> str:
    try:
        if file.stat().st_size > _FILE_BYTES_MAX:
            raise ResourceError(f"{file}: larger than 1 MiB, which a cluster would not take either")
        return file.read_text(encoding="utf-8")
    except OSError as e:
        raise ResourceError(f"{file}: cannot be read: {e.strerror}") from e
    except UnicodeDecodeError as e:
        raise ResourceError(f"{file}: not text in UTF-8") from e


def _single_document(text: str, where: str) -> Mapping[str, Any]:
    try:
        documents = [d for d in yaml.load_all(text, _StrictLoader) if d is not None]
    except yaml.YAMLError as e:
        problem = " ".join(str(e).replace('"<unicode string>", ', "").split())
        raise ResourceError(f"{where}: not YAML: {problem}") from e
    except RecursionError as e:
        raise ResourceError(f"{where}: nested too deeply") from e
    except _UNREADABLE as e:
        raise ResourceError(f"{where}: not YAML: a value is not what its form or its tag says ({e})") from e
    if len(documents) != 1:
        raise ResourceError(f"{where}: {len(documents)} YAML documents; give a file with one {KIND}")
    document = documents[0]
    if not isinstance(document, Mapping):
        raise ResourceError(
            f"{where}: not a resource; it begins with `apiVersion: {API_VERSION}` and `kind: {KIND}`"
        )
    if document.get("kind") != KIND or document.get("apiVersion") != API_VERSION:
        what = f"{_named(document.get('apiVersion'))} {_named(document.get('kind'))}"
        raise ResourceError(f"{where}: a resource of {API_VERSION} {KIND} is needed, and this is {what}")
    if not isinstance(document.get("metadata"), Mapping) or not document["metadata"].get("name"):
        raise ResourceError(f"{where}: metadata.name: missing; give the view a name")
    if (mistake := _no_json(document, "")) is not None:
        raise ResourceError(f"{where}: {mistake}")
    return document


def _no_json(value: object, path: str) -> str | None:
    """Return the first value that YAML has and JSON, and so a resource, has not: a date, bytes, a set, infinity."""
    if isinstance(value, Mapping):
        return next(filter(None, (_no_json(inner, _join(path, name)) for name, inner in value.items())), None)
    if isinstance(value, list):
        inner = (_no_json(item, f"{path}[{index}]") for index, item in enumerate(value))
        return next(filter(None, inner), None)
    if value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value)):
        return None
    kind = "a number that is not finite" if isinstance(value, float) else f"a {type(value).__name__}"
    return f"{path}: YAML reads this as {kind}; put it in quotes"


# PyYAML's constructors raise these, besides YAMLError, for a value that does not fit its tag: `!!int x`, 2020-02-30.
_UNREADABLE: Final = (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError)


class _StrictLoader(yaml.SafeLoader):
    """Refuse repeated keys, of which YAML silently keeps the last one, keys that are no text, and aliases, of which a few
    lines expand to gigabytes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.constructor.ConstructorError(None, None, "aliases (*) are not read")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if not isinstance(key, yaml.ScalarNode):
                what = "a list" if isinstance(key, yaml.SequenceNode) else "a group of fields"
                raise yaml.constructor.ConstructorError(
                    None, None, f"{what} is no name of a field", key.start_mark
                )
            if key.tag not in _NAMES:
                problem = f"the field's name {_named(key.value)} is no text; put it in quotes"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            if key.value in seen:
                problem = f"the field {_shown(key.value)} is there twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


_NAMES: Final = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge", "tag:yaml.org,2002:value")


def _matches(_: Any, pattern: str, value: Any, __: Any) -> Iterator[ValidationError]:
    # A cluster's `$` is the end of the text. Python's also matches before a last line break.
    if isinstance(value, str) and not re.search(pattern.replace("$", r"\Z"), value):
        yield ValidationError("the pattern does not match")


def _is_integer(_: Any, value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)  # 2.0 is no integer here


_Validator: Final[type[Validator]] = validators.extend(  # type: ignore[no-untyped-call]
    Draft202012Validator,
    {"pattern": _matches},
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine("integer", _is_integer),
)


@cache
def _validator() -> Validator:
    return _Validator(_closed(crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"], path=()))


def _closed(schema: Any, path: tuple[str, ...]) -> Any:
    """Return the schema with unknown fields forbidden where a cluster would drop them."""
    closed = dict(schema)
    if "properties" in schema:
        closed["properties"] = {name: _closed(s, (*path, name)) for name, s in schema["properties"].items()}
        keeps = schema.get("x-kubernetes-preserve-unknown-fields") or path == ("metadata",)
        if not keeps and "additionalProperties" not in schema:
            closed["additionalProperties"] = False
    if "items" in schema:
        closed["items"] = _closed(schema["items"], (*path, "[]"))
    if schema.get("x-kubernetes-list-type") == "set":
        closed["uniqueItems"] = True
    return closed


def _mistakes(document: Mapping[str, Any]) -> Iterator[str]:
    for error in _validator().iter_errors(document):
        path, value, schema = _path(error), cast(Any, error.instance), cast(Any, error.schema)
        match error.validator:
            case "additionalProperties":
                for name in set(value) - set(schema["properties"]):
                    yield f"{_join(path, name)}: unknown field{_meant(name, schema['properties'])}"
            case "required":
                for name in schema["required"]:
                    if name not in value:
                        yield f"{_join(path, name)}: missing"
            case _:
                yield f"{path}: {_in_words(error)}"
    yield from _same_names(document.get("spec"))


def _same_names(spec: Any) -> Iterator[str]:
    """Report list items that have the same name."""
    view = spec.get("view") if isinstance(spec, Mapping) else None
    if not isinstance(view, Mapping):
        return
    aggregate = view.get("aggregate")
    lists = {
        "spec.view.indexes": view.get("indexes"),
        "spec.view.aggregate.columns": aggregate.get("columns") if isinstance(aggregate, Mapping) else None,
    }
    for path, items in lists.items():
        names = [i.get("name") for i in items if isinstance(i, Mapping)] if isinstance(items, list) else []
        for name in {n for n in names if isinstance(n, str) and names.count(n) > 1}:
            yield f"{path}: the name {name!r} is there twice"


def _in_words(error: ValidationError) -> str:
    value: Any = error.instance
    wanted: Any = error.validator_value
    shown = _shown(value)
    match error.validator:
        case "type":
            hint = ""
            if wanted == "string" and isinstance(value, bool | int | float):
                hint = "; put it in quotes"
            return f"must be {_TYPES[str(wanted)]}, not {shown}{hint}"
        case "enum":
            choices = [str(choice) for choice in wanted]
            return f"{shown} is not one of {', '.join(choices)}{_nearest(value, choices)}"
        case "minimum":
            return f"must be at least {wanted}, not {shown}"
        case "maximum":
            return f"must be at most {wanted}, not {shown}"
        case "minLength" | "minItems":
            return "must not be empty" if wanted == 1 else f"{shown} is too short"
        case "maxLength":
            return f"must be at most {wanted} characters long, and is {len(value)}"
        case "maxItems" | "maxProperties":
            return f"must have at most {wanted} entries, and has {len(value)}"
        case "uniqueItems":
            return "the same entry is there twice"
        case "pattern":
            if wanted == _ABOVE_ZERO and re.fullmatch("0+(ms|s|m|h|d)", value):
                return f"must be longer than {value}"
            return f"{shown} {_PATTERNS.get(str(wanted), f'is not of the form {wanted}')}"
        case _:
            return error.message


_DURATION: Final = r"^[0-9]{1,9}(ms|s|m|h|d)$"
_ABOVE_ZERO: Final = r"^[1-9][0-9]{0,8}(ms|s|m|h|d)$"
_NO_DURATION: Final = "is not a duration: write a number and a unit, like 500ms, 30s, 5m, 12h or 7d"
# What messages say of a value that does not match a pattern of the schema.
_PATTERNS: Final = {
    _DURATION: _NO_DURATION,
    _ABOVE_ZERO: _NO_DURATION,
    r"^[a-zA-Z0-9._-]+$": "is not a topic's name: letters, digits, dots, underscores and hyphens",
    r"^[^\s,]+:[0-9]{1,5}(,\s*[^\s,]+:[0-9]{1,5})*$": "is not host:port, or several of them with commas",
    r"^[a-z]([-a-z0-9]*[a-z0-9])?$": "is not a name: lower-case letters, digits and hyphens, first a letter, last no hyphen",
    r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$": "is not a name: lower-case letters, digits and hyphens, a letter or digit at both ends",
    r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$": "is not a name: lower-case letters, digits, hyphens and dots",
    r"^[^_]": "begins with _, as the members that answers add do; choose another name",
    r"^[1-9][0-9]*[kmgKMG]$": "is not an amount of memory, like 512m or 2g",
    r"^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?$": "is not an amount of storage, like 10Gi",
    r"^https?://": "is not an address that begins with http:// or https://",
    r"^[0-9a-fA-F.:]+/[0-9]{1,3}$": "is not a network, like 10.0.0.0/8",
    r"^(0(\.[0-9]+)?|1(\.0+)?)$": "is not a number from 0 to 1",
}


def _nearest(name: object, names: Any) -> str:
    by_folded = {str(n).lower(): str(n) for n in names}
    near = difflib.get_close_matches(str(name).lower(), list(by_folded), n=1, cutoff=0.6)
    return f"; did you mean {by_folded[near[0]]}?" if near else ""


def _meant(name: str, siblings: Any) -> str:
    """Suggest the same name in another place, which is more likely, or else a similar name in this place."""
    elsewhere = [path for path in _field_paths() if path.rpartition(".")[2].lower() == name.lower()]
    same = name.lower() in (str(sibling).lower() for sibling in siblings)
    if not elsewhere or same:
        return _nearest(name, siblings)
    return f"; did you mean {' or '.join(elsewhere[:3])}?"


@cache
def _field_paths() -> tuple[str, ...]:
    spec = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return tuple(_paths_below(spec, "spec"))


def _paths_below(schema: Mapping[str, Any], path: str) -> Iterator[str]:
    for name, inner in schema.get("properties", {}).items():
        yield f"{path}.{name}"
        yield from _paths_below(inner, f"{path}.{name}")


def _path(error: ValidationError) -> str:
    path = ""
    for step in error.absolute_path:
        path = f"{path}[{step}]" if isinstance(step, int) else _join(path, step)
    return path


def _join(path: str, name: object) -> str:
    return f"{path}.{_named(name)}" if path else _named(name)


def _named(name: object) -> str:
    """Return a name verbatim, or quoted and cut if it is long or has line breaks."""
    text = str(name)
    return text if text.isprintable() and len(text) <= 253 else _shown(name)


def _shown(value: object) -> str:
    if value is None:
        return "an empty value"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a group of fields"
    if isinstance(value, list):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
