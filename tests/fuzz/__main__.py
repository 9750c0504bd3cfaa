"""`python -m tests.fuzz TARGET --seconds 8`: look for an input on which a decoder or reader is wrong."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from types import ModuleType

from tests.fuzz.engine import fuzz, has_atheris, instrument


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", help="its name, or that of a group; `list` prints them all")
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--keep", type=Path, default=Path(), help="the folder for an input that was found")
    parser.add_argument("--input", type=Path, help="only try this file, in hexadecimal")
    asked = parser.parse_args()
    guided = has_atheris() and asked.input is None and asked.target != "list"
    module: ModuleType = instrument(_load) if guided else _load()
    known = {name: (name,) for name in module.TARGETS} | module.GROUPS
    if asked.target == "list":
        print(*known, sep="\n")
        return 0
    if asked.target not in known:
        parser.error(f"no target {asked.target!r}; there are {', '.join(known)}")
    names = known[asked.target]
    target = module.together(names)
    if asked.input is not None:
        module.TARGETS[names[0]].check(bytes.fromhex(asked.input.read_text()))
        return 0
    if not guided:
        parser.error("atheris is not installed here; pytest tests/fuzz tries the same targets with hypothesis")

    def keep(data: bytes) -> None:
        name, rest = module.chosen(names, data)
        path = asked.keep / f"{name}-{abs(hash(rest)) % 10**8:08}.hex"
        path.write_text(rest.hex() + "\n")
        print(f"found by target {name}: {path}", flush=True)

    return fuzz(target.check, target.seeds(), seconds=asked.seconds, keep=keep)


def _load() -> ModuleType:
    from tests.fuzz import targets

    return targets


if __name__ == "__main__":
    sys.exit(main())
