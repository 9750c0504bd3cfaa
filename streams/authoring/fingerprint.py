"""Fingerprints of user code: they change when the code does, not when its comments or its place do."""

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

__all__ = ["fingerprint"]


def fingerprint(*functions: Callable[..., Any]) -> str:
    """A short hash of the functions' code without comments, docstrings and layout."""
    digest = hashlib.blake2b(digest_size=6)
    for function in functions:
        digest.update(_shape(function).encode())
    return digest.hexdigest()


def _shape(function: Callable[..., Any]) -> str:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        code = getattr(function, "__code__", None)
        return (
            repr((code.co_code, code.co_names, [c for c in code.co_consts if isinstance(c, (str, int))]))
            if code
            else ""
        )
    for node in ast.walk(tree):
        if (
            isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            and ast.get_docstring(node) is not None
        ):
            node.body = node.body[1:] or [ast.Pass()]
    return ast.dump(tree)
