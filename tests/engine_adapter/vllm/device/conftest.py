"""The device of these tests: everything is done late, and what was done wrongly meanwhile fails the test."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from late_device import LateDevice


@pytest.fixture
def device() -> "Iterator[LateDevice]":
    from late_device import LateDevice  # needs torch, without which the tests are skipped by their modules

    late = LateDevice()
    yield late
    late.finish()
    assert late.faults_seen == []
