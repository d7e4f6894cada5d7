"""One SeaweedFS for all tests of the cold tier: it takes seconds to start. Each test finds it empty."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from bucket_nodes import Nodes
from bucket_server import BucketServer


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BucketServer]:
    with BucketServer(tmp_path_factory.mktemp("bucket")) as server:
        yield server


@pytest.fixture
def bucket(server: BucketServer) -> BucketServer:
    server.empty()
    return server


@pytest.fixture
def nodes(tmp_path: Path, bucket: BucketServer) -> Iterator[Nodes]:
    nodes = Nodes(tmp_path, bucket)
    try:
        yield nodes
    finally:
        nodes.close()
