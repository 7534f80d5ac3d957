"""Runs a program in which links and renames of files take up to 100 ms longer, at random.

python delayed.py SEED PROGRAM ARGUMENT...
"""

from __future__ import annotations

import os
import random
import runpy
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_SECONDS = 0.1
SHARE = 0.2  # of the calls


def slowed(call: Callable[..., Any], chosen: random.Random) -> Callable[..., Any]:
    """The call, which now and then waits before it acts."""

    def wait_and_call(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - any call
        if chosen.random() < SHARE:
            time.sleep(chosen.uniform(0, MOST_SECONDS))
        return call(*arguments, **named)

    return wait_and_call


if __name__ == "__main__":
    seed, program, *arguments = sys.argv[1:]
    chance = random.Random(int(seed))
    for name in ("link", "rename", "replace"):
        setattr(os, name, slowed(getattr(os, name), chance))
    sys.argv = [program, *arguments]
    runpy.run_path(program, run_name="__main__")
