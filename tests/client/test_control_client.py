"""The client of the JSON pages against a real daemon: deadlines, restarts, threads, and what the daemon refuses before a page."""

import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from daemon_process import DaemonProcess

from mooncask.client.control_client import ControlClient
from mooncask.client.socket_path import http_socket_path
from mooncask.client.unix_http import UnixConnection
from mooncask.errors import (
    BadRequest,
    Busy,
    DaemonUnavailable,
    DeadlineExceeded,
    NoSuchNamespace,
)


def test_a_daemon_that_does_not_answer_costs_the_deadline_and_no_more(tmp_path: Path) -> None:
    with DaemonProcess.start(tmp_path) as daemon, ControlClient(daemon.socket_path) as control:
        assert control.overview().ready
        daemon.freeze()
        began = time.monotonic()
        with pytest.raises(DeadlineExceeded, match="overview"):
            control.overview(deadline_seconds=0.2)
        assert 0.2 <= time.monotonic() - began < 2
        daemon.thaw()
        assert control.overview().ready, "on a new connection: the old one may still answer the call that was given up"


def test_a_restarted_daemon_is_found_again_by_the_next_call(tmp_path: Path) -> None:
    with DaemonProcess.start(tmp_path) as daemon, ControlClient(daemon.socket_path, 5.0) as control:
        assert control.overview().ready
        daemon.restart()
        assert control.overview().ready
        daemon.stop()
        with pytest.raises(DaemonUnavailable, match="-http"):
            control.overview()
        daemon.run()
        assert control.config().file == str(daemon.config_path)


def test_threads_share_a_client_and_none_gets_anothers_answer(tmp_path: Path) -> None:
    with DaemonProcess.start(tmp_path) as daemon, ControlClient(daemon.socket_path, 20.0) as control:
        wrong: list[str] = []

        def ask(number: int) -> None:
            for _ in range(20):
                try:
                    control.block(f"kv-{number}", "00")
                    wrong.append("an answer")
                except NoSuchNamespace as error:
                    if error.namespace != f"kv-{number}":
                        wrong.append(error.namespace)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []


def test_what_is_refused_before_a_page_is_reached_comes_as_its_error_too(tmp_path: Path) -> None:
    with (
        DaemonProcess.start(tmp_path, {"http.requests_max": 1}) as daemon,
        ControlClient(daemon.socket_path, 10.0) as quick,
        closing(UnixConnection(http_socket_path(daemon.socket_path), 10.0)) as held,
    ):
        held.putrequest("POST", "/-/v1/why")
        held.putheader("Content-Length", "10")
        held.endheaders(b"{")
        with pytest.raises(Busy, match="requests_max"):
            while True:
                quick.overview()
        held.send(b"}" * 9)
        assert held.getresponse().status == 400


def test_keys_that_are_none_are_refused_without_asking(tmp_path: Path) -> None:
    with ControlClient(str(tmp_path / "nobody")) as control:
        for namespace, key in (("", "00"), ("kv-a", ""), ("kv-a", b"")):
            with pytest.raises(BadRequest):
                control.block(namespace, key)
        with pytest.raises(DaemonUnavailable, match="nobody-http"):
            control.block("kv-a", "00")
