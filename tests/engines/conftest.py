"""The model of these tests, and prompts that share no prefix by accident."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_process import DaemonProcess
from engines_environment import vllm_python

from mooncask.engine_adapter.transformers.model_files import cache_folder, smollm2_folder
from mooncask.errors import ConfigError

CACHE = Path(os.environ.get("MOONCASK_CACHE") or cache_folder())


@pytest.fixture(scope="session")
def model() -> Path:
    if vllm_python() is None:
        pytest.skip('vLLM is not in build/engines/vllm; "make engines" puts it there (3.5 GB)')
    try:
        return smollm2_folder(CACHE, lambda _: None)
    except ConfigError as error:
        pytest.skip(f"the demo's model is not to be had: {error}")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with DaemonProcess.start(tmp_path_factory.mktemp("daemon"), {"dram.capacity": "512 MiB"}) as running:
        yield running
