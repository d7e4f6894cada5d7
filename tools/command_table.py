"""The commands of `mooncask` by name: what each does in one line, and which module is loaded when it is asked for.

A command's module is imported when the command runs, not before: `mooncask --help` needs none of them.
"""

import importlib
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperCommand
from typer.main import get_command

BLOCKS = "Blocks"
LOOKING = "Looking"
NAMESPACES = "Namespaces"
RUNNING = "Running"
STUDIES = "Studies"


@dataclass(frozen=True, slots=True)
class Entry:
    """`target` is "module:name": a function, or a `typer.Typer` with commands of its own."""

    target: str
    help: str
    panel: str
    hidden: bool = False


COMMANDS: dict[str, Entry] = {
    "put": Entry("mooncask.tools.blocks:put", "Store a file as one block.", BLOCKS),
    "get": Entry("mooncask.tools.blocks:get", "Write one block's bytes to stdout or a file.", BLOCKS),
    "evict": Entry("mooncask.tools.housekeeping:evict", "Delete blocks from all tiers.", BLOCKS),
    "rm": Entry("mooncask.tools.housekeeping:evict", "The same as evict.", BLOCKS, hidden=True),
    "pin": Entry("mooncask.tools.housekeeping:pin", "Keep blocks from being evicted.", BLOCKS),
    "unpin": Entry("mooncask.tools.housekeeping:unpin", "Take one pin off blocks.", BLOCKS),
    "ttl": Entry("mooncask.tools.housekeeping:ttl", "Let blocks vanish after a time, or never.", BLOCKS),
    "replicate": Entry("mooncask.tools.replicate:replicate", "Copy blocks to another node.", BLOCKS),
    "warm": Entry("mooncask.tools.replicate:warm", "Bring blocks into memory ahead of need.", BLOCKS),
    "ls": Entry("mooncask.tools.listing:ls", "List namespaces, or the blocks of one.", LOOKING),
    "stat": Entry("mooncask.tools.listing:stat", "Show the daemon with its tiers and counters, or one block.", LOOKING),
    "tree": Entry("mooncask.tools.tree:tree", "Show the prefix tree of a KV namespace.", LOOKING),
    "top": Entry("mooncask.tools.top:top", "Watch the daemon: tiers, flows, hottest chains, clients.", LOOKING),
    "peers": Entry("mooncask.tools.peers:peers", "Show the other nodes, and what came from each.", LOOKING),
    "why": Entry("mooncask.tools.why:why", "Explain a miss: which block of a prompt is not here, and why.", LOOKING),
    "bill": Entry("mooncask.tools.bill:bill", "Bills of a Conductor's tenants, and when caches pay.", LOOKING),
    "verify": Entry("mooncask.tools.verify:verify", "Check every block against its checksum.", LOOKING),
    "hash": Entry("mooncask.tools.hashing:hash_command", "Print the keys of a prompt's blocks.", LOOKING),
    "namespaces": Entry("mooncask.tools.namespaces:namespaces", "List, create and drop namespaces.", NAMESPACES),
    "export": Entry(
        "mooncask.tools.transfer.command:export_command", "Write a namespace into a tar or an S3 bucket.", NAMESPACES
    ),
    "import": Entry("mooncask.tools.transfer.command:import_command", "Read an export into a namespace.", NAMESPACES),
    "serve": Entry("mooncask.tools.serve:serve", "Run the daemon of this node until SIGTERM or Ctrl-C.", RUNNING),
    "conductor": Entry(
        "mooncask.conductor.serving.command:conductor",
        "Serve models through workers: an OpenAI-compatible door.",
        RUNNING,
    ),
    "worker": Entry(
        "mooncask.engine_adapter.transformers.server.__main__:main", "Run a prefill or decode worker.", RUNNING
    ),
    "prefill": Entry("mooncask.tools.prefill:prefill", "Compute a prompt's KV and store it.", RUNNING),
    "config": Entry("mooncask.tools.config:config", "Check a configuration file, or show what is in force.", RUNNING),
    "doctor": Entry("mooncask.tools.doctor.command:doctor", "Check this machine and say what to do.", RUNNING),
    "mount": Entry("mooncask.tools.mount:mount", "Show the store as a file system.", RUNNING),
    "umount": Entry("mooncask.tools.mount:umount", "Unmount it.", RUNNING),
    "version": Entry("mooncask.tools.version:version", "Print the version, and that of the socket protocol.", RUNNING),
    "bench": Entry("mooncask.tools.bench.command:bench", "Measure on this machine.", STUDIES),
    "demo": Entry(
        "mooncask.tools.demo.command:demo", "Ask a real model about a document, with and without a store.", STUDIES
    ),
    "demo-cluster": Entry(
        "mooncask.tools.demo.cluster_command:demo_cluster", "The same with three nodes, one of them killed.", STUDIES
    ),
    "demo-serve": Entry(
        "mooncask.tools.demo.serving.command:demo_serve", "Chats through a Conductor, policy by policy.", STUDIES
    ),
    "replay": Entry(
        "mooncask.conductor.replay.command:replay_command", "Hit rates of eviction policies on a trace.", STUDIES
    ),
    "simulate": Entry("mooncask.tools.simulate:simulate", "Simulate a cluster; figures of the papers.", STUDIES),
    "plan": Entry(
        "mooncask.conductor.planner.command:plan_command", "The cheapest mix of hardware that meets an SLO.", STUDIES
    ),
}
"""In the order of the help page."""


class LazyCommand(TyperCommand):
    """A command that is known by name and help only; its module is imported when its arguments are to be read."""

    def __init__(self, name: str, entry: Entry) -> None:
        super().__init__(name, help=entry.help, short_help=entry.help, hidden=entry.hidden, rich_help_panel=entry.panel)
        self._target = entry.target

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return self.load().make_context(info_name, args, parent, **extra)

    def load(self) -> Any:
        """The command itself."""
        module, _, name = self._target.partition(":")
        found = getattr(importlib.import_module(module), name)
        app = typer.Typer(add_completion=False)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=self.name)
        else:
            app.callback()(_nothing)  # or typer would make the one command the whole program
            app.command(self.name)(found)
        group: Any = get_command(app)
        return group.commands[self.name]


def _nothing() -> None:
    """The callback of a program whose one command is wanted."""


def lazy_commands() -> dict[str, LazyCommand]:
    return {name: LazyCommand(name, entry) for name, entry in COMMANDS.items()}
