"""The keys of a configuration by name: what flags, keywords, the docs, and the guards of runs are derived from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, get_args, get_origin

from fedskew.config.schema import RunConfig
from fedskew.config.section import Section
from fedskew.core.errors import similar


@dataclass(frozen=True)
class Key:
    """What one key means. The flags below hold for a section's keys if the section sets them."""

    name: str
    help: str
    default: Any = None
    annotation: Any = field(default=str, repr=False)
    #: what holds if the default is None
    unset: str = "none"
    #: the keyword in Python, and the flag with dashes; None if there is no such shortcut
    keyword: str | None = None
    #: what other tools call it; an error answers these words with this key
    synonyms: tuple[str, ...] = ()
    #: False if runs that differ in this key alone have the same results
    changes_result: bool = True
    #: whether the value names a file or folder
    is_path: bool = False
    #: whether the key may be changed in the config.toml of a run before it is resumed
    may_change_on_resume: bool = False
    #: whether a sweep may vary it: how to train, not what to learn
    tunable: bool = False
    #: whether it is part of the task; only runs on the same task are compared
    is_task: bool = False
    #: whether a site of a federation must have approved the value
    needs_approval: bool = True

    @property
    def flag(self) -> str:
        """The flag of the command line."""
        return f"--{(self.keyword or '').replace('_', '-')}"

    @property
    def type(self) -> type:
        """The type of one value: bool, int, float or str."""
        kinds = [kind for kind in _plain(self.annotation) if kind in (bool, int, float)]
        return kinds[0] if kinds else str

    @property
    def shown_default(self) -> str:
        """The default as help shows it."""
        return self.unset if self.default is None else str(self.default)


def _plain(annotation: Any) -> Iterator[Any]:
    """The types in an annotation such as ``Annotated[int, ...] | None``."""
    if get_origin(annotation) is Annotated:
        yield from _plain(get_args(annotation)[0])
    elif get_args(annotation):
        for each in get_args(annotation):
            yield from _plain(each)
    else:
        yield annotation


def _declared(section: Section, prefix: str, inherited: Mapping[str, Any]) -> Iterator[Key]:
    for name, found in type(section).model_fields.items():
        extra: Any = found.json_schema_extra
        meaning, default = extra["meaning"], getattr(section, name)
        key = Key(prefix + name, found.description or "", default, found.annotation, **{**inherited, **meaning})
        yield replace(key, may_change_on_resume=key.may_change_on_resume or key.is_path)
        if isinstance(default, Section):
            passed_on = {name: value for name, value in meaning.items() if name not in ("keyword", "unset", "synonyms")}
            yield from _declared(default, f"{key.name}.", {**inherited, **passed_on})


_ALL = {key.name: key for key in _declared(RunConfig(), "", {})}
#: an option of readers of files that has a keyword of its own
_ALL["data.options.skip_bad"] = replace(
    _ALL["data.options"],
    name="data.options.skip_bad",
    help="Leave out images that cannot be read, and count them.",
    default=False,
    annotation=bool,
    keyword="skip_bad",
)
#: every key of the configuration, sections left out
KEYS = {name: key for name, key in _ALL.items() if not isinstance(key.default, Section)}
#: the keys and sections that have a keyword and a flag
KEYWORDS = {key.keyword: key for key in _ALL.values() if key.keyword is not None}


def of(name: str) -> Key:
    """Return the key of this name, or of the table that the name is in, such as ``model.args``."""
    while name not in _ALL and "." in name:
        name = name.rpartition(".")[0]
    return _ALL.get(name) or Key(name, "")


def meant(word: str, resembling: bool = True) -> list[Key]:
    """Return the keys that someone may mean with a word, those with a keyword first.

    They have the word as a synonym, as their keyword or as the end of their name. If none has and keys `resembling` it
    will do, they have a longer, a similarly spelled or a shorter one.
    """
    section, _, last = word.rpartition(".")
    inside = [key for key in KEYS.values() if not section or key.name.startswith(f"{section}.")]
    named: dict[str, list[Key]] = {}
    for key in sorted(inside, key=lambda key: key.keyword is None):
        end = key.name.rpartition(".")[2]
        for each in {end, key.keyword or end}:
            named.setdefault(each, []).append(key)
    if found := [key for key in inside if last in key.synonyms] or named.get(last):
        return found
    longer = [each for each in named if each.startswith(f"{last}_")]
    shorter = [each for each in named if each.endswith(f"_{last}")]
    close = longer[:1] or similar(last, named) or shorter[:1] if resembling else []
    return [key for each in close for key in named[each]]


def where(**wanted: bool) -> list[str]:
    """Return the names of the keys whose meaning is as wanted, for example ``where(is_path=True)``."""
    return [name for name, key in KEYS.items() if all(getattr(key, what) == value for what, value in wanted.items())]


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values by their dotted names, such as ``local.lr``."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found
