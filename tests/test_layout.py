"""The shape of the repository: packages, import directions, sizes, and what no module may do.

Reads sources with `ast` and pyproject.toml; imports nothing of Mooncask. What it cannot see: imports by a computed name.
"""

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FUNCTION_LINES_MAX = 70
MODULE_LINES_MAX = 400
NOT_OURS = {"build", "dist", "shared"}

MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "tiers": {"errors"},
    "client": {"errors"},
    "daemon": {
        "errors",
        "tiers",
        "client.wire",
        "client.control",
        "client.where",
        "client.coming",
        "client.hold",
        "client.family",
        "client.hashing",
        "client.socket_path",
        "client.dashboards",
    },
    "engine_adapter": {"errors", "client"},
    "fuse_mount": {"errors", "client"},
    "conductor": {"errors", "client", "tiers.policies", "tiers.block"},
    "tools": {"errors", "client", "conductor", "fuse_mount", "engine_adapter.transformers"},
}
"""The table of docs/ARCHITECTURE.md: what each room may import beside itself."""

OPTIONAL = {
    "torch",
    "transformers",
    "safetensors",
    "gguf",
    "botocore",
    "obstore",
    "cryptography",
    "mfusepy",
    "pyverbs",
    "valkey",
    "vllm",
    "sglang",
    "lmcache",
    "zmq",
}
"""Packages that only extras bring: the daemon, the clients and the command line start without them."""

PICKLERS = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "shelve", "joblib"}


@dataclass(frozen=True)
class Source:
    """One module: its dotted name without `mooncask.`, where it is, and its syntax tree."""

    name: str
    path: Path
    lines: int
    tree: ast.Module

    @property
    def room(self) -> str:
        return self.name.split(".")[0]


@cache
def pyproject() -> dict[str, dict[str, dict[str, dict[str, list[str]]]]]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def package_dirs() -> dict[str, str]:
    setuptools: dict[str, dict[str, str]] = pyproject()["tool"]["setuptools"]  # type: ignore[assignment]
    return setuptools["package-dir"]


def packages() -> list[str]:
    setuptools: dict[str, list[str]] = pyproject()["tool"]["setuptools"]  # type: ignore[assignment]
    return setuptools["packages"]


def rooms() -> set[str]:
    return {folder for folder in package_dirs().values() if "/" not in folder}


def root_folders() -> list[Path]:
    return [
        path for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".") and path.name not in NOT_OURS
    ]


def read_source(path: Path) -> Source:
    text = path.read_text()
    parts = path.relative_to(ROOT).with_suffix("").parts
    return Source(".".join(parts).removesuffix(".__init__"), path, len(text.splitlines()), ast.parse(text, str(path)))


@cache
def sources() -> tuple[Source, ...]:
    """All modules of the rooms and of the tests."""
    folders = sorted(rooms() | {"tests"})
    return tuple(read_source(path) for folder in folders for path in sorted((ROOT / folder).rglob("*.py")))


def room_sources() -> list[Source]:
    return [source for source in sources() if source.room != "tests"]


def imported_names(node: ast.AST) -> list[str]:
    """The dotted names that one node imports; `from a import b` gives `a.b`, which may be a module or a name in one."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.level == 0:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Call) and called(node) in {"import_module", "__import__"}:
        return [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
    return []


def all_imports(source: Source) -> list[str]:
    return [name for node in ast.walk(source.tree) for name in imported_names(node)]


def imports_at_start(source: Source) -> list[str]:
    """What is imported as soon as the module is: not inside functions, not under `if TYPE_CHECKING`."""
    names: list[str] = []
    waiting: list[ast.AST] = [source.tree]
    while waiting:
        node = waiting.pop()
        names += imported_names(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        waiting.extend(ast.iter_child_nodes(node))
    return names


def called(call: ast.Call) -> str:
    """The last word of what is called: `c` for both `c()` and `a.b.c()`."""
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def calls(source: Source) -> Iterator[ast.Call]:
    return (node for node in ast.walk(source.tree) if isinstance(node, ast.Call))


def is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def place(source: Source, node: ast.expr | ast.stmt) -> str:
    return f"{source.path.relative_to(ROOT)}:{node.lineno}"


# --- packages --------------------------------------------------------------------------------------------------------


def test_every_folder_with_an_init_is_listed_as_a_package() -> None:
    found = {
        "mooncask." + ".".join(init.parent.relative_to(ROOT).parts)
        for folder in root_folders()
        if folder.name != "tests"
        for init in folder.rglob("__init__.py")
    }
    assert found == set(packages())


def test_every_package_is_mapped_to_its_own_folder() -> None:
    assert package_dirs() == {name: name.removeprefix("mooncask.").replace(".", "/") for name in packages()}


def test_the_import_root_links_to_exactly_the_rooms() -> None:
    links = {link.name: link.resolve() for link in (ROOT / ".importroot/mooncask").iterdir() if link.is_symlink()}
    assert links == {room: ROOT / room for room in rooms()}


def test_every_room_says_that_it_is_typed() -> None:
    assert [room for room in sorted(rooms()) if not (ROOT / room / "py.typed").is_file()] == []


def test_every_room_has_a_line_in_the_table_of_imports() -> None:
    assert sorted(rooms() - MAY_IMPORT.keys()) == []


def test_the_checkers_look_at_every_room() -> None:
    tools = pyproject()["tool"]
    assert set(tools["pyright"]["include"]) == rooms() | {"tests"}
    assert set(tools["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"]) == rooms()  # type: ignore[call-overload]


# --- imports ---------------------------------------------------------------------------------------------------------


def test_imports_run_one_way() -> None:
    wrong = [
        f"{source.name} imports {name}"
        for source in room_sources()
        for name in all_imports(source)
        if is_within(name, "mooncask")
        and not any(
            is_within(name.removeprefix("mooncask."), allowed) for allowed in MAY_IMPORT[source.room] | {source.room}
        )
    ]
    assert wrong == []


def test_rooms_are_imported_under_their_full_names() -> None:
    wrong = [
        f"{source.name} imports {name}"
        for source in sources()
        for name in all_imports(source)
        if name.split(".")[0] in rooms()
    ]
    assert wrong == []


def test_no_import_is_relative() -> None:
    wrong = [
        place(source, node)
        for source in sources()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ImportFrom) and node.level > 0
    ]
    assert wrong == []


def test_the_daemon_the_clients_and_the_command_line_start_without_the_extras() -> None:
    modules = {source.name: source for source in room_sources()}
    waiting = [name for name in modules if name.split(".")[0] in {"daemon", "client", "errors"}]
    waiting += [name for name in modules if name == "tools.main"]
    seen: set[str] = set()
    wrong: list[str] = []
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        names = imports_at_start(modules[module])
        wrong += [f"{module} imports {name}" for name in names if name.split(".")[0] in OPTIONAL]
        waiting += [other for name in names for other in modules if is_within(name, f"mooncask.{other}")]
    assert wrong == []


# --- sizes -----------------------------------------------------------------------------------------------------------


def test_no_function_is_longer_than_70_lines() -> None:
    long = [
        f"{place(source, node)} {node.name}: {node.end_lineno - node.lineno + 1} lines"
        for source in sources()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert long == []


def test_no_module_is_longer_than_400_lines() -> None:
    assert [f"{source.name}: {source.lines} lines" for source in sources() if source.lines > MODULE_LINES_MAX] == []


# --- what no module may do -------------------------------------------------------------------------------------------


def test_nothing_is_pickled() -> None:
    wrong = [
        f"{source.name} imports {name}"
        for source in sources()
        for name in all_imports(source)
        if name.split(".")[0] in PICKLERS
    ]
    wrong += [
        f"{place(source, call)} allow_pickle"
        for source in sources()
        for call in calls(source)
        for keyword in call.keywords
        if keyword.arg == "allow_pickle" and ast.unparse(keyword.value) != "False"
    ]
    assert wrong == []


def test_rocksdict_is_opened_raw_since_its_default_pickles() -> None:
    wrong = [
        place(source, call)
        for source in sources()
        if any(is_within(name, "rocksdict") for name in all_imports(source))
        for call in calls(source)
        if called(call) in {"Options", "WriteBatch"}
        and "raw_mode=True" not in [ast.unparse(keyword) for keyword in call.keywords]
    ]
    assert wrong == []


def is_print_to_stdout(call: ast.Call) -> bool:
    if not (isinstance(call.func, ast.Name) and call.func.id == "print"):
        return False
    return "file=sys.stderr" not in [ast.unparse(keyword) for keyword in call.keywords]


def is_command(source: Source) -> bool:
    """Whether the module is a command of the command line, wherever it lies."""
    return source.room == "tools" or source.name.split(".")[-1] in {"command", "__main__"}


def test_only_commands_and_the_daemons_readiness_line_print() -> None:
    prints = [
        place(source, call)
        for source in room_sources()
        if not is_command(source)
        for call in calls(source)
        if is_print_to_stdout(call)
    ]
    assert len(prints) <= 1 and all(where.startswith("daemon/") for where in prints), prints
