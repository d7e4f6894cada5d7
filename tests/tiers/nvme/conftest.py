"""Fixtures of the NVMe tier's tests: every store that a test opens is checked and closed at its end."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from nvme_doubles import FaultyFiles, OpenStore, SmallStore, config

from mooncask.tiers.nvme import FileLayer, NvmeConfig


@pytest.fixture
def small(tmp_path: Path) -> NvmeConfig:
    return config(tmp_path / "nvme")


@pytest.fixture
def faulty_files() -> FaultyFiles:
    return FaultyFiles()


@pytest.fixture
async def open_store(small: NvmeConfig) -> AsyncIterator[OpenStore]:
    """Opens a store on the test's folder; the one before must be closed."""
    opened: list[SmallStore] = []

    async def open_one(files: FileLayer | None = None, config: NvmeConfig = small) -> SmallStore:
        opened.append(await SmallStore().open(config, files))
        return opened[-1]

    yield open_one
    for store in opened:
        if not store.closed:
            await store.close()
