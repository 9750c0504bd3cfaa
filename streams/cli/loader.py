"""Loads an app: `MODULE:APP`, where MODULE is a dotted name or the path of a file."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType

from streams.authoring.app import App
from streams.authoring.declared import check_name
from streams.errors import UsageError

__all__ = ["load_app", "load_file", "rename"]


def load_app(target: str) -> App:
    """The app that `target` names. Raises UsageError that says what is missing and where."""
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name:
        raise UsageError(f"{target!r} is no MODULE:APP; write it like examples/order.py:app or shop.orders:app")
    is_path = place.endswith(".py") or os.sep in place
    module = load_file(Path(place)) if is_path else _load_dotted(place)
    app: object = module
    for part in name.split("."):
        app = getattr(app, part, None)
    if isinstance(app, App):
        return app
    apps = sorted(key for key, value in vars(module).items() if isinstance(value, App))
    there = f"it has {', '.join(f'{place}:{key}' for key in apps)}" if apps else "make one with app = App('NAME')"
    what = "has nothing of this name" if app is None else f"is {type(app).__name__}, no App"
    raise UsageError(f"{target}: {name!r} {what}; {there}")


def rename(app: App, name: str | None) -> App:
    """The app under another name where one is given: its topics and its group begin with that, so it shares nothing."""
    if name is not None:
        try:
            app.name = check_name("app", name)
        except ValueError as error:
            raise UsageError(str(error)) from error
    return app


def load_file(path: Path) -> ModuleType:
    """The module in a file, whose folder it may import from, as when Python runs it."""
    try:
        found = path.is_file()
    except OSError as error:  # such as a name that is too long
        raise UsageError(f"the file {path} cannot be read: {error.strerror}") from error
    if not found:
        raise UsageError(f"there is no file {path}")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    # Under a name of its own: a user's file may be called like a module that is loaded already, such as json.py.
    spec = importlib.util.spec_from_file_location(f"streams_app_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up while they are made
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[spec.name]
        raise _explain(error, str(path)) from error
    return module


def _load_dotted(name: str) -> ModuleType:
    if "" not in sys.path:
        sys.path.insert(0, "")  # the current folder, as with `python -m`
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            hint = f"; for a file write its path: {name.replace('.', '/')}.py:APP"
            raise UsageError(f"there is no module {name!r} here or among the installed packages{hint}") from error
        raise _explain(error, name) from error
    except BaseException as error:
        raise _explain(error, name) from error


def _explain(error: BaseException, what: str) -> BaseException:
    """The user's own error with its place; what ends the process stays as it is."""
    if isinstance(error, KeyboardInterrupt):
        return error
    if isinstance(error, SyntaxError):
        return UsageError(f"cannot load {what}: {error.msg} ({error.filename}, line {error.lineno})")
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return UsageError(f"cannot load {what}: {text} ({_place(error)})")


def _place(error: BaseException) -> str:
    """The last line of the traceback that is not the import system's."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    ours = str(Path(__file__))
    last = next((frame for frame in reversed(frames) if frame.filename != ours), None)
    return f"{last.filename}, line {last.lineno}" if last else "where it is imported"
