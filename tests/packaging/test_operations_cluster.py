"""docs/OPERATIONS.md, "From one node to many": what it has an operator do to the example configuration gives one that is valid."""

import re
import subprocess
from pathlib import Path

from mooncask.daemon.config_source import load_config

ROOT = Path(__file__).parents[2]


def test_the_page_makes_a_valid_cluster_of_the_example_configuration(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "OPERATIONS.md").read_text()
    [command] = re.findall(r"^    (sed -i [^\n]*<<END\n.*?^    END)$", page, re.MULTILINE | re.DOTALL)
    file = tmp_path / "mooncask.toml"
    file.write_text((ROOT / "packaging" / "etc" / "mooncask.toml").read_text())
    script = re.sub(r"^    ", "", command, flags=re.MULTILINE).replace("/etc/mooncask/mooncask.toml", str(file))
    subprocess.run(["bash", "-euc", script], check=True, timeout=30)
    cluster = load_config(file, {}).cluster
    assert (cluster.listen, cluster.directory) == ("10.0.0.1:9471", "redis://10.0.0.9:6379")
    assert cluster.secret_file and cluster.directory_password
