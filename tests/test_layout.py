"""The package's rooms: few at the root, each loadable without those above it, no file too long for one idea."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import spiritlevel

ROOT = Path(spiritlevel.__file__).parent
# From the bottom up, as the linter's contract in pyproject.toml has them.
ROOMS = ["values", "results", "inputs", "engine", "measures", "analyses", "page", "lab", "compat", "cli"]
MOST_LINES = 400
MOST_IN_ORDER = 8  # arguments that a call may give without naming them

LOAD_ALONE = """
import importlib, pkgutil, sys

class Deleted:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[:2] in [["spiritlevel", room] for room in above]:
            raise ModuleNotFoundError(f"{name} was deleted")

room, above = sys.argv[1], sys.argv[2:]
sys.meta_path.insert(0, Deleted())
package = importlib.import_module(f"spiritlevel.{room}")
for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    importlib.import_module(found.name)
"""


def test_the_root_holds_the_rooms_and_nothing_else() -> None:
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == set(ROOMS)
    assert len(folders) <= 10
    assert {path.name for path in ROOT.glob("*.py")} == {"__init__.py", "__main__.py"}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_is_loaded_whole_without_those_above_it(room: str) -> None:
    above = ROOMS[ROOMS.index(room) + 1 :]
    if room == "lab":  # beside each other
        above.remove("compat")
    done = subprocess.run([sys.executable, "-c", LOAD_ALONE, room, *above], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_reading_a_saved_result_loads_no_engine() -> None:
    code = (
        "import spiritlevel.results.compared, sys; "
        "print(*{m.split('.')[1] for m in sys.modules if '.' in m and m.startswith('spiritlevel')})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"results", "values"}


def test_no_file_is_longer_than_one_idea() -> None:
    long = {str(path.relative_to(ROOT)): count for path in ROOT.rglob("*.py") if (count := _lines(path)) > MOST_LINES}
    assert not long


def test_no_function_takes_nine_arguments_in_order() -> None:
    functions = [
        (path.relative_to(ROOT), node)
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    own = {f"{path}:{node.name}": [a.arg for a in node.args.posonlyargs + node.args.args] for path, node in functions}
    assert not [place for place, names in own.items() if len([n for n in names if n != "self"]) > MOST_IN_ORDER]


def test_tests_stand_as_the_source_does() -> None:
    tests = Path(__file__).parent
    folders = {path.relative_to(tests) for path in tests.rglob("*") if path.is_dir() and path.name != "__pycache__"}
    # Collections of networks with a command and a record of their own.
    collections = {Path("attack"), Path("modern"), Path("typical")}
    assert {folder for folder in folders - collections if not (ROOT / folder).is_dir()} == set()


def _lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())
