"""A machine without RDMA: the configuration decides whether that is an error."""

import logging

import pytest
from rdma_world import why_no_device

from mooncask.daemon.transport.rdma.device import open_device
from mooncask.errors import ConfigError
from mooncask.tiers.shared_memory import SharedMemory

pytestmark = pytest.mark.skipif(not why_no_device(), reason="this machine has an RDMA device")


def test_auto_says_once_why_blocks_go_over_tcp(caplog: pytest.LogCaptureFixture) -> None:
    arena = SharedMemory("rdma-test", 1 << 20, setting="test")
    with caplog.at_level(logging.INFO):
        assert open_device("auto", arena, "10.0.0.1") is None
    arena.close()
    [said] = caplog.messages
    assert said.startswith("blocks go over TCP: ")


def test_rdma_that_is_demanded_and_not_there_is_an_error_of_the_configuration() -> None:
    arena = SharedMemory("rdma-test", 1 << 20, setting="test")
    with pytest.raises(ConfigError, match=r"cluster\.transport.*needs an RDMA device"):
        open_device("rdma", arena, "10.0.0.1")
    arena.close()


def test_tcp_does_not_look_for_a_device(caplog: pytest.LogCaptureFixture) -> None:
    arena = SharedMemory("rdma-test", 1 << 20, setting="test")
    with caplog.at_level(logging.INFO):
        assert open_device("tcp", arena, "10.0.0.1") is None
    arena.close()
    assert caplog.messages == []
