"""The threads of the NVMe tier."""

from concurrent.futures import ThreadPoolExecutor


class Workers:
    """Bulk I/O, syncing and the index apart: an fdatasync must not queue behind the writes of the next group."""

    def __init__(self, io_threads: int) -> None:
        self.io_threads = io_threads
        self.io = ThreadPoolExecutor(io_threads, "nvme-io")
        self.sync = ThreadPoolExecutor(2, "nvme-sync")
        self.index = ThreadPoolExecutor(1, "nvme-index")

    def close(self) -> None:
        """Waits for what is running; nothing may be under way any more, so that is at once."""
        for pool in (self.io, self.sync, self.index):
            pool.shutdown(wait=True)
