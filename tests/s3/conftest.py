"""One daemon for each file of tests and way in, since clients differ and daemons do not; each test has a bucket of its own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from s3_door import DOORS, S3Door, boto_client, open_s3


@pytest.fixture(scope="module", params=DOORS)
def door(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Door]:
    settings = getattr(request.module, "SETTINGS", {})
    with open_s3(
        Path(tmp_path_factory.mktemp("s3")), request.param, {"dram.capacity": "128 MiB", **settings}
    ) as opened:
        yield opened


@pytest.fixture
def s3(door: S3Door) -> Iterator[Any]:
    client = boto_client(door)
    yield client
    client.close()


@pytest.fixture
def bucket(s3: Any) -> Iterator[str]:
    """Empty, and gone afterwards with all that is in it."""
    name = "test-bucket"
    s3.create_bucket(Bucket=name)
    yield name
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=name):
        for item in page.get("Contents", []):
            s3.delete_object(Bucket=name, Key=item["Key"])
    s3.delete_bucket(Bucket=name)
