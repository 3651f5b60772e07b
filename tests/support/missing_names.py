"""A Spark without one of its private names: where the door asks for it, it gets what such a Spark would answer."""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import FrameType, ModuleType
from typing import Any, Final

import py4j
import pyspark
import pytest
from py4j.java_gateway import JavaMember, JavaObject, JavaPackage, is_instance_of
from py4j.protocol import Py4JError
from pyspark import SparkContext

import spark_ext
from spark_ext.spark.backend.private_names import ABSENT, DRIVER, JVM

Name = tuple[str, str]  # a module or class, and a name in it; "" for itself

RELEASE: Final = ".".join(pyspark.__version__.split(".")[:2])
_DOOR: Final = f"{spark_ext.__path__[0]}/spark/backend/"
_BETWEEN: Final = (f"{py4j.__path__[0]}/", __file__, "<frozen importlib")
_SAID: Final = {
    "getDeclaredField": "java.lang.NoSuchFieldException: {}",
    "getDeclaredMethod": "java.lang.NoSuchMethodException: {}",
    "forName": "java.lang.ClassNotFoundException: {}",
}
"""What Java says of a name that is given as text."""


def class_of(owner: str) -> str:
    """The name of a class in the installed Spark."""
    return re.sub(r"streaming\.(runtime|checkpointing)\.", "streaming.", owner) if RELEASE == "4.0" else owner


def absent(owner: str, names: str) -> set[str]:
    """Those names that the table says the installed Spark does not have."""
    return {name for name in names.split() if f"{owner}.{name}".endswith(tuple(ABSENT[RELEASE]))}


def name_in(member: Any, args: tuple[Any, ...]) -> str:
    """The name for which a call asks; for a field it is an argument of Java's reflection."""
    return str(args[0] if member.name in _SAID else member.name)


class MissingNames:
    """Lets the door miss one name at a time; `asked` are those for which it has asked."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.asked: set[Name] = set()
        self._missing: Name | None = None
        self._classes = {class_of(owner): owner for owners in JVM.values() for owner in owners}
        self._owners: dict[str, list[str]] = {}
        for owners in JVM.values():
            for owner, names in owners.items():
                for name in names.split():
                    self._owners.setdefault(name, []).append(owner)
        call, within = JavaMember.__call__, JavaPackage.__getattr__

        def called(member: Any, *args: Any) -> Any:
            if self._hides(member, args):
                text = _SAID.get(member.name, "py4j.Py4JException: Method {}([]) does not exist")
                raise Py4JError(f"An error occurred:\n{text.format(name_in(member, args))}")
            return call(member, *args)

        def found(package: Any, name: str) -> Any:
            owner = self._classes.get(f"{package._fqn}.{name}")
            if owner and self._is_missing(owner, ""):
                return JavaPackage(f"{package._fqn}.{name}", package._gateway_client, package._jvm_id)
            return within(package, name)

        patch.setattr(JavaMember, "__call__", called)
        patch.setattr(JavaPackage, "__getattr__", found)
        for feature, owners in DRIVER.items():
            for owner, text in owners.items():
                for name in text.split() if feature != "Spark Connect" else ():
                    self._guard(patch, owner, name)

    @contextmanager
    def without(self, name: Name) -> Iterator[None]:
        """Miss a name in the block, in which the door has to ask for it."""
        self._missing = name
        self.asked.discard(name)
        try:
            yield
        finally:
            self._missing = None

    def _is_missing(self, owner: str, name: str) -> bool:
        if not self._looks_for(owner, name) or not _by_door():
            return False
        self.asked.add((owner, name))
        return self._missing == (owner, name)

    def _looks_for(self, owner: str, name: str) -> bool:
        return self._missing in (None, (owner, name))

    def _hides(self, member: Any, args: tuple[Any, ...]) -> bool:
        if member.name == "forName" and args[0] in self._classes:
            return self._is_missing(self._classes[args[0]], "")
        name = name_in(member, args)
        owners = [one for one in self._owners.get(name, ()) if self._looks_for(one, name)]
        return any(self._is_of(member, one) and self._is_missing(one, name) for one in owners)

    def _is_of(self, member: Any, owner: str) -> bool:
        kind = class_of(owner)
        if not isinstance(member.container, JavaObject):  # a static method
            return bool(member.target_id.rpartition(".")[2] == kind.rpartition(".")[2])
        if member.name in _SAID:
            return str(member.container.getName()) == kind
        try:
            return is_instance_of(SparkContext._gateway, member.container, kind)
        except Py4JError:
            return False  # this Spark has no such class

    def _guard(self, patch: pytest.MonkeyPatch, owner: str, name: str) -> None:
        try:
            holder: Any = import_module(owner)
        except ModuleNotFoundError:
            module, _, kind = owner.rpartition(".")
            holder = getattr(import_module(module), kind)
        if not isinstance(holder, ModuleType):
            patch.setattr(holder, name, _Guarded(self, owner, name, vars(holder).get(name)), raising=False)
            return
        hide(patch, holder, name, lambda: self._is_missing(owner, name))


def hide(patch: pytest.MonkeyPatch, module: ModuleType, name: str, missing: Callable[[], bool]) -> None:
    """Let a module have a name only while it is not missing; its own functions find it in any case."""

    class Module(type(module)):  # type: ignore[misc]
        def __getattribute__(self, asked: str) -> Any:
            if asked == name and missing():
                raise AttributeError(f"module '{module.__name__}' has no attribute '{name}'")
            return super().__getattribute__(asked)

    patch.setattr(module, "__class__", Module)


def _by_door() -> bool:
    """Whether the door asks, through py4j or an import."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_BETWEEN):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(_DOOR)


class _Guarded:
    """An attribute of a class that the door may miss."""

    def __init__(self, names: MissingNames, owner: str, name: str, shipped: Any) -> None:
        self._names, self._owner, self._name, self._shipped = names, owner, name, shipped

    def __get__(self, held: Any, kind: type) -> Any:
        if self._names._is_missing(self._owner, self._name):
            raise AttributeError(f"'{kind.__name__}' object has no attribute '{self._name}'")
        if held is not None and self._name in vars(held):
            return vars(held)[self._name]
        shipped = self._shipped
        return shipped.__get__(held, kind) if hasattr(type(shipped), "__get__") else shipped

    def __set__(self, held: Any, value: Any) -> None:
        vars(held)[self._name] = value
