"""Files that are being written, by the name that they will have. Here they are only told apart; `publishing.py` stores them.

A draft begins with the first open for writing and ends with the last close. In KV namespaces a name that is no digest can't
become a block: such a file is *staged*. It stays here, readable, until it is renamed to a digest or removed.
"""

import errno
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from mooncask.fuse_mount.failures import failure
from mooncask.fuse_mount.spool import Memory, Spool
from mooncask.fuse_mount.store_link import Namespace

DRAFTS_MAX = 512
"""Files being written at a time, staged ones included; another one is ENFILE."""
MEMORY_BYTES_MAX = 256 << 20
"""Of all spools together; beyond that they are files from their first byte."""
NAMES_MAX = 4096
"""Names this mount wrote that it remembers, and folders made that nothing is in."""

Names = tuple[bytes, ...]
"""The parts of a path below a namespace's `blocks/`."""


@dataclass(frozen=True, slots=True)
class DraftName:
    namespace: str
    names: Names


@dataclass(slots=True, eq=False)
class Draft:
    """A file being written. `lock` guards the spool and is held while it is published: writes wait then."""

    namespace: Namespace
    names: Names
    key: bytes
    """Empty for a staged file."""
    spool: Spool
    opens: int = 0
    changed: bool = True
    """Whether it differs from what is published; a new file does."""
    written: bool = False
    """Whether somebody wrote since then: only made or emptied, it is published by the last close and by no earlier one. A
    shell that redirects closes a file before anything is in it."""
    broken: bool = False
    """A write failed: what is there now is not what anybody meant, and is not published."""
    removed: bool = False
    """It lost its name, to nothing or to another file: its writers may go on, but nothing is published."""
    time_ns: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def name(self) -> DraftName:
        return DraftName(self.namespace.name, self.names)

    @property
    def staged(self) -> bool:
        return not self.key

    def touch(self, *, written: bool = True) -> None:
        self.changed, self.written = True, self.written or written
        self.time_ns = time.time_ns()


class Drafts:
    """All drafts of a mount, folders made in it, and the names it wrote. Any thread may use it."""

    def __init__(self, spool_folder: str) -> None:
        self._spool_folder = spool_folder
        self._memory = Memory(MEMORY_BYTES_MAX)
        self._lock = threading.Lock()
        self._drafts: dict[DraftName, Draft] = {}
        self._made: OrderedDict[DraftName, None] = OrderedDict()
        self._wrote: OrderedDict[DraftName, None] = OrderedDict()

    # --- drafts ---

    def find(self, namespace: str, names: Names) -> Draft | None:
        with self._lock:
            return self._drafts.get(DraftName(namespace, names))

    def open(
        self, namespace: Namespace, names: Names, key: bytes, fill: Callable[[Spool], None] | None = None
    ) -> Draft:
        """The draft of this name, one open more. A new one is filled by `fill` with what is stored. Raises ENFILE."""
        draft = Draft(
            namespace, names, key, Spool(self._spool_folder, self._memory), changed=fill is None, time_ns=time.time_ns()
        )
        with draft.lock:  # whoever finds it before it is filled waits
            with self._lock:
                found = self._drafts.get(draft.name)
                if found is None:
                    self._check_room()
                    self._drafts[draft.name] = draft
                draft.opens += 1 if found is None else 0
                if found is not None:
                    found.opens += 1
                    return found
            try:
                if fill is not None:
                    fill(draft.spool)
            except BaseException:
                self.close(draft)
                raise
        return draft

    def attach(self, namespace: str, names: Names) -> Draft | None:
        """The draft of this name, one open more, if there is one."""
        with self._lock:
            draft = self._drafts.get(DraftName(namespace, names))
            if draft is not None:
                draft.opens += 1
            return draft

    def close(self, draft: Draft) -> None:
        """One open less. The last one ends the draft, unless it is staged and still has its name."""
        with self._lock:
            draft.opens -= 1
            known = self._drafts.get(draft.name) is draft
            ended = draft.opens <= 0 and not (known and draft.staged)
            if ended and known:
                del self._drafts[draft.name]
        if ended:
            draft.spool.close()

    def forget(self, draft: Draft) -> None:
        """The draft has no name any more: it was removed, or is published under another one."""
        with self._lock:
            if self._drafts.get(draft.name) is draft:
                del self._drafts[draft.name]
            draft.removed = True
            ended = draft.opens <= 0
        if ended:
            draft.spool.close()

    def move(self, draft: Draft, names: Names, key: bytes) -> None:
        """Gives a draft another name; what had that name before is not a draft any more."""
        with self._lock:
            if self._drafts.get(draft.name) is draft:
                del self._drafts[draft.name]
            draft.names, draft.key = names, key
            displaced = self._drafts.get(draft.name)
            if displaced is not None:
                displaced.removed = True
            if draft.opens > 0 or draft.staged:
                self._drafts[draft.name] = draft

    def within(self, namespace: str, folder: Names) -> dict[bytes, Draft | None]:
        """Names in a folder that only this mount knows: drafts, and None for folders."""
        depth = len(folder)
        with self._lock:
            found: dict[bytes, Draft | None] = {}
            for name in self._made:
                if name.namespace == namespace and len(name.names) > depth and name.names[:depth] == folder:
                    found[name.names[depth]] = None
            for name, draft in self._drafts.items():
                if name.namespace == namespace and len(name.names) > depth and name.names[:depth] == folder:
                    found[name.names[depth]] = draft if len(name.names) == depth + 1 else None
            return found

    def is_last_open(self, draft: Draft) -> bool:
        with self._lock:
            return draft.opens == 1

    def displace(self, namespace: str, names: Names) -> None:
        """Another file gets this name: a draft that has it loses it."""
        draft = self.find(namespace, names)
        if draft is not None:
            self.forget(draft)

    def is_folder(self, namespace: str, folder: Names) -> bool:
        """Whether this folder was made here, or a draft is in it."""
        depth = len(folder)
        with self._lock:
            if DraftName(namespace, folder) in self._made:
                return True
            names = (name for table in (self._drafts, self._made) for name in table)
            return any(
                name.namespace == namespace and len(name.names) > depth and name.names[:depth] == folder
                for name in names
            )

    def _check_room(self) -> None:
        if len(self._drafts) >= DRAFTS_MAX:
            raise failure(errno.ENFILE)

    # --- folders and names ---

    def make_folder(self, namespace: str, names: Names) -> None:
        """A folder that is shown although nothing is in it."""
        with self._lock:
            _add(self._made, DraftName(namespace, names))

    def remove_folder(self, namespace: str, names: Names) -> bool:
        """False: it was not made here."""
        with self._lock:
            return self._made.pop(DraftName(namespace, names), _ABSENT) is not _ABSENT

    def wrote(self, namespace: str, names: Names) -> None:
        """This mount stored a block under this name: it may rename it."""
        with self._lock:
            _add(self._wrote, DraftName(namespace, names))

    def is_ours(self, namespace: str, names: Names) -> bool:
        with self._lock:
            return DraftName(namespace, names) in self._wrote

    def removed(self, namespace: str, names: Names) -> None:
        with self._lock:
            self._wrote.pop(DraftName(namespace, names), None)


_ABSENT = object()


def _add(table: "OrderedDict[DraftName, None]", name: DraftName) -> None:
    table[name] = None
    table.move_to_end(name)
    while len(table) > NAMES_MAX:
        table.popitem(last=False)
