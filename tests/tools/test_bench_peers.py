"""Other stores beside ours: measured where they are installed, skipped with the reason where they are not."""

import importlib.util
import shutil
from pathlib import Path

import pytest

from mooncask.tools.bench.mooncake_peer import start_mooncake
from mooncask.tools.bench.peers import Starter, measure_peers
from mooncask.tools.bench.plan import QUICK
from mooncask.tools.bench.redis_peer import SERVERS, start_redis
from mooncask.tools.bench.result import Findings

REDIS = any(shutil.which(name) for name in SERVERS)
MOONCAKE = importlib.util.find_spec("mooncake") is not None


def measured(name: str, start: Starter, folder: Path) -> Findings:
    findings = Findings()
    measure_peers({name: start}, QUICK, folder, findings, progress=lambda stage: None)
    return findings


def test_a_server_that_is_not_in_path_is_skipped_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    findings = measured("redis", start_redis, tmp_path)
    assert findings.measures == []
    assert [skipped.what for skipped in findings.skipped] == ["redis"]
    assert "valkey-server, redis-server" in findings.skipped[0].why


@pytest.mark.skipif(MOONCAKE, reason="Mooncake Store is installed")
def test_a_package_that_is_not_installed_is_skipped_with_what_to_install(tmp_path: Path) -> None:
    findings = measured("mooncake store", start_mooncake, tmp_path)
    assert "pip install mooncake-transfer-engine-non-cuda" in findings.skipped[0].why


@pytest.mark.skipif(
    not REDIS, reason="no valkey-server or redis-server in PATH; on Debian: apt-get install redis-server"
)
def test_redis_is_put_to_and_got_from(tmp_path: Path) -> None:
    findings = measured("redis", start_redis, tmp_path)
    assert findings.skipped == []
    assert [measure.name for measure in findings.measures] == ["put", "get into a private buffer"]


def test_a_server_that_does_not_start_is_skipped_with_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = tmp_path / "redis-server"
    server.write_text("#!/bin/sh\nexit 1\n")
    server.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    findings = measured("redis", start_redis, tmp_path)
    assert findings.skipped[0].why == f"{server} did not start"
