"""Configuration: defaults, file, environment, and an error for every way to get it wrong that says how to get it right."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncask.daemon.config import Config
from mooncask.daemon.config_source import load_config, split_listen
from mooncask.daemon.main import store_config
from mooncask.daemon.quantities import SIZE_UNITS, format_size, parse_seconds, parse_size
from mooncask.errors import ConfigError
from mooncask.tiers.block import WriteMode


def load(tmp_path: Path, text: str, **environment: str) -> Config:
    path = tmp_path / "mooncask.toml"
    path.write_text(text)
    return load_config(path, environment)


def test_without_a_file_every_key_has_its_default() -> None:
    assert load_config(None, {}) == Config()


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    config = load(tmp_path, '[dram]\ncapacity = "1GiB"\npolicy = "lru"\n', MOONCASK_DRAM_CAPACITY="64MiB")
    assert (config.dram.capacity, config.dram.policy) == (64 << 20, "lru")


def test_each_kind_of_value_is_read_from_text() -> None:
    config = load_config(
        None,
        {
            "MOONCASK_LOG_JSON": "on",
            "MOONCASK_LIMITS_BATCH_MAX": "7",
            "MOONCASK_LIMITS_PIN_SHARE": "0.5",
            "MOONCASK_LIMITS_LEASE_MAX": "2m",
            "MOONCASK_SOCKET_TRUSTED_WRITERS": "1, 2",
            "MOONCASK_NVME_MODE": "write_back",
            "MOONCASK_NODE_NAME": "node-7",
            "MOONCASK_CLUSTER_LISTEN": "127.0.0.1:0",
            "MOONCASK_CLUSTER_PEERS": "n2:9471, n3:9471",
        },
    )
    assert config.log.json and config.limits.batch_max == 7 and config.limits.pin_share == 0.5
    assert config.limits.lease_max == 120.0 and config.socket.trusted_writers == (1, 2)
    assert config.nvme.mode is WriteMode.WRITE_BACK and config.node.name == "node-7"
    assert config.cluster.peers == ("n2:9471", "n3:9471")


def test_variables_of_other_programs_are_left_alone() -> None:
    others = {"MOONCASK_CONFIG": "x", "MOONCASK_SOCKET": "y", "MOONCASK_DEMO_FOLDER": "z", "PATH": "/bin"}
    assert load_config(None, others) == Config()


def test_tenants_have_uids_and_quotas(tmp_path: Path) -> None:
    config = load(tmp_path, '[tenants.team-a]\nuids = [1000]\nquota = "1GiB"\n[tenants.team-b]\nuids = [1001]\n')
    assert config.tenants["team-a"].quota == 1 << 30 and config.tenants["team-b"].uids == (1001,)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[dram]\ncapacty = "1GiB"', ["dram.capacty", "1GiB", "did you mean capacity?"]),
        ('[dramm]\ncapacity = "1GiB"', ["[dramm]", "did you mean dram?"]),
        ("[zebra]\nx = 1", ["[zebra]", "there are node, socket"]),
        ("capacity = 1", ["capacity = 1", "sections"]),
        ('[dram]\ncapacity = "12 parsecs"', ["dram.capacity", "12 parsecs", "512MiB"]),
        ("[dram]\ncapacity = -1", ["dram.capacity", "-1", "512MiB"]),
        ("[dram]\ncapacity = true", ["dram.capacity", "True"]),
        ("[dram]\ncapacity = 1.5", ["dram.capacity", "1.5"]),
        ('[dram]\ncapacity = "1KiB"', ["dram.capacity", "1KiB", "at least 1MiB"]),
        ('[dram]\npolicy = "random"', ["dram.policy", "random", '"s3fifo", "2q", "arc", "sieve"']),
        ('[ghosts]\nwindow = "0s"', ["ghosts.window", "above 0"]),
        ("[dram]\nhuge_pages = 1", ["dram.huge_pages", "true or false"]),
        ("[limits]\nbatch_max = 0", ["limits.batch_max", "0", "1 to 4096"]),
        ("[limits]\nbatch_max = 5000", ["limits.batch_max", "5000", "1 to 4096"]),
        ("[limits]\nblock_max = 0", ["limits.block_max", "0"]),
        ("[limits]\npin_share = 1.5", ["limits.pin_share", "1.5", "at most 1"]),
        ('[limits]\nlease_max = "soon"', ["limits.lease_max", "soon", "500ms"]),
        ("[limits]\nlease_max = -1", ["limits.lease_max", "-1"]),
        ("[limits]\nlease_max = inf", ["limits.lease_max", "inf"]),
        ('[socket]\nmode = "888"', ["socket.mode", "888", "0660"]),
        ("[socket]\nmode = 660", ["socket.mode", "660"]),
        ('[socket]\ntrusted_writers = ["root"]', ["socket.trusted_writers", "user ids"]),
        ("[socket]\npath = 5", ["socket.path", "5", "a text"]),
        ('[nvme]\nmode = "write_never"', ["nvme.mode", "write_never", '"write_through", "write_back", "memory"']),
        ('[node]\nname = ""', ["node.name", "1 to 64"]),
        ('[log]\nlevel = "loud"', ["log.level", "loud", '"debug"']),
        ('[http]\nlisten = "0.0.0.0:9470"', ["http.listen", "0.0.0.0:9470", "loopback", "credentials"]),
        ('[http]\nlisten = "[::]:9470"', ["http.listen", "loopback"]),
        ('[http]\nlisten = "example.org:80"', ["http.listen", "loopback"]),
        ('[http]\nlisten = "127.0.0.1"', ["http.listen", "host:port"]),
        ('[http]\nlisten = "127.0.0.1:99999"', ["http.listen", "host:port"]),
        ('[http]\ndomain = "s3.example:80"', ["http.domain", "s3.example:80", "s3.example.org"]),
        ('[http]\ndomain = "10.0.0.1"', ["http.domain", "10.0.0.1", "host name"]),
        ('[s3]\netag = "sha1"', ["s3.etag", "sha1", '"md5", "xxh3"']),
        ('[s3]\nack = "maybe"', ["s3.ack", "maybe", '"durable", "published"']),
        ("[s3]\nregion = 5", ["s3.region", "5", "0 to 64"]),
        ('[http]\ntls_key = "k.pem"', ["http.tls_certificate", "http.tls_key"]),
        ('[http]\ntls_certificate = "c.pem"', ["http.tls_key", "http.tls_certificate"]),
        ('[http]\nadmin_token = "short"', ["http.admin_token", "(not shown)", "8 characters"]),
        ("[credentials.'K/1']\nsecret = '12345678'", ["credentials", "K/1", "letters"]),
        ("[credentials.KEY]\ntenant = 'a'", ["credentials.KEY", "either secret or secret_file"]),
        ("[credentials.KEY]\nsecret = '12345678'\nsecret_file = 'x'", ["credentials.KEY", "either"]),
        ("[credentials.KEY]\nsecret = '1234567'", ["credentials.KEY.secret", "8 characters"]),
        ("[credentials.KEY]\nsecret = '12345678'\nrights = 'all'", ["credentials.KEY.rights", '"read", "write"']),
        ("[credentials.KEY]\nsecret = '12345678'\ntenant = ''", ["credentials.KEY.tenant", "1 to 64"]),
        ("[tenants.a]\nuids = [5]\n[tenants.b]\nuids = [5]", ["tenants.b.uids", "5", "tenant a"]),
        ("[tenants.a]\nuid = 5", ["tenants.a.uid", "did you mean uids?"]),
        ("[tenants]\na = 5", ["[tenants.a]", "5"]),
        ("[dram\n", ["config file", "TOML"]),
        ('[cluster]\nlisten = "0.0.0.0:9471"', ["cluster.listen", "loopback", "secret_file"]),
        ('[cluster]\nlisten = "127.0.0.1"', ["cluster.listen", "host:port"]),
        ('[cluster]\nlisten = "0.0.0.0:9471"\nsecret = "12345678"', ["cluster.advertise", "0.0.0.0:9471"]),
        ('[cluster]\nsecret = "short"', ["cluster.secret", "(not shown)", "8 characters"]),
        ('[cluster]\nsecret = "12345678"\nsecret_file = "x"', ["cluster.secret", "(not shown)", "secret_file"]),
        ('[cluster]\npeers = ["a:1"]', ["cluster.peers", "cluster.listen"]),
        ("[cluster]\npeers = [1]", ["cluster.peers", "a list of texts"]),
        ('[cluster]\nlisten = "[::1]:0"\npeers = ["a:0"]', ["cluster.peers", "a:0", "port"]),
        ('[cluster]\nlisten = "[::1]:0"\npeers = ["a:1"]\ndirectory = "redis://b:1"', ["cluster.peers", "directory"]),
        ('[cluster]\nlisten = "[::1]:0"\ndirectory = "http://b:1"', ["cluster.directory", "http://b:1", "valkey://"]),
        ('[cluster]\nlisten = "[::1]:0"\ndirectory = "redis://u:pw@b:1"', ["cluster.directory", "...", "_password"]),
        ('[cluster]\ntransport = "pigeon"', ["cluster.transport", "pigeon", '"auto", "tcp", "rdma"']),
        ("[cluster]\nconnections = 17", ["cluster.connections", "1 to 16"]),
        ('[cluster]\nttl = "10ms"', ["cluster.ttl", "one second"]),
        ('[cluster]\ntls_key = "k.pem"', ["cluster.tls_certificate", "cluster.tls_key"]),
    ],
)
def test_a_wrong_file_is_refused_with_key_value_and_what_is_allowed(tmp_path: Path, text: str, says: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert [part for part in says if part not in caught.value.message] == [], caught.value.message
    assert caught.value.exit_code == 78


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("MOONCASK_DRAM_CAPACITY", "much", ["MOONCASK_DRAM_CAPACITY", "much", "512MiB"]),
        ("MOONCASK_DRAM_CAPACTY", "1GiB", ["MOONCASK_DRAM_CAPACTY", "did you mean MOONCASK_DRAM_CAPACITY?"]),
        ("MOONCASK_DRAM_FOO", "1", ["MOONCASK_DRAM_FOO", "no such variable"]),
        ("MOONCASK_LOG_JSON", "maybe", ["MOONCASK_LOG_JSON", "maybe", "true or false"]),
        ("MOONCASK_LIMITS_BATCH_MAX", "many", ["MOONCASK_LIMITS_BATCH_MAX", "many", "1 to 4096"]),
        ("MOONCASK_LIMITS_PIN_SHARE", "nan", ["MOONCASK_LIMITS_PIN_SHARE", "nan"]),
        ("MOONCASK_SOCKET_TRUSTED_WRITERS", "1,x", ["MOONCASK_SOCKET_TRUSTED_WRITERS", "user ids"]),
        ("MOONCASK_TENANTS_A_QUOTA", "1", ["MOONCASK_TENANTS_A_QUOTA", "config file only"]),
    ],
)
def test_an_unreadable_variable_is_an_error(name: str, value: str, says: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, {name: value})
    assert [part for part in says if part not in caught.value.message] == [], caught.value.message


@pytest.mark.parametrize(
    "text",
    [
        "[credentials.KEY]\nsecret = 'hush-hush'\nsecret_file = 'x'",
        "[credentials.KEY]\nsecrte = 'hush-hush'",
        "[credentials.KEY]\nsecret = ['hush-hush']",
        "[credentials]\nKEY = 'hush-hush'",
        "[http]\nadmin_tokn = 'hush-hush'\nadmin_token = ['hush-hush']",
        "[http]\nadmin_token = ['hush-hush']",
    ],
)
def test_no_error_shows_a_secret(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert "hush" not in caught.value.message and caught.value.__cause__ is None


def test_no_error_shows_a_secret_of_the_environment() -> None:
    for name in ("MOONCASK_CREDENTIALS_KEY_SECRET", "MOONCASK_HTTP_ADMIN_TOKN"):
        with pytest.raises(ConfigError) as caught:
            load_config(None, {name: "hush-hush"})
        assert "hush" not in caught.value.message, caught.value.message


def test_a_configuration_does_not_show_its_secrets(tmp_path: Path) -> None:
    text = "[credentials.KEY]\nsecret = 'hush-hush'\n[http]\nadmin_token = 'hush-hush'\n"
    config = load(tmp_path, text)
    assert config.credentials["KEY"].secret == config.http.admin_token == "hush-hush"
    for shown in (repr(config), str(config), f"{config.http}", repr(config.credentials)):
        assert "hush" not in shown and "(not shown)" in shown


def test_with_credentials_any_address_may_be_listened_on(tmp_path: Path) -> None:
    config = load(tmp_path, "[credentials.KEY]\nsecret = 'hush-hush'\n[http]\nlisten = '0.0.0.0:9470'\n")
    assert config.http.listen == "0.0.0.0:9470" and config.credentials["KEY"].tenant == "default"


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_config(tmp_path / "none.toml", {})


def test_the_nvme_tiers_own_rules_name_the_keys_of_the_file(tmp_path: Path) -> None:
    config = load(tmp_path, f'[nvme]\npath = "{tmp_path}"\ncapacity = "10MiB"\nsegment = "8MiB"\n')
    with pytest.raises(ConfigError) as caught:
        store_config(config)
    assert caught.value.key == "nvme.capacity"


def test_without_nvme_new_namespaces_live_in_memory() -> None:
    assert load_config(None, {}).default_mode is WriteMode.MEMORY
    assert load_config(None, {"MOONCASK_NVME_PATH": "/x"}).default_mode is WriteMode.WRITE_THROUGH


def test_a_block_is_never_larger_than_what_dram_may_hold() -> None:
    settings = store_config(load_config(None, {"MOONCASK_DRAM_CAPACITY": "10MiB"}))
    assert settings.block_bytes_max == int((10 << 20) * 0.7)


def test_addresses_are_split() -> None:
    assert split_listen("127.0.0.1:80") == ("127.0.0.1", 80)
    assert split_listen("[::1]:0") == ("::1", 0)


@given(st.integers(0, 1 << 50))
def test_a_size_survives_being_written_and_read(size_bytes: int) -> None:
    assert parse_size(format_size(size_bytes)) == parse_size(size_bytes) == size_bytes


@given(st.integers(0, 1000), st.sampled_from(sorted(SIZE_UNITS)), st.sampled_from(["", " "]))
def test_units_of_sizes_in_any_case(count: int, unit: str, space: str) -> None:
    assert parse_size(f"{count}{space}{unit.lower()}") == parse_size(f"{count}{unit}") == count * SIZE_UNITS[unit]


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1e3", "1 000", "1MiB/s", "0x10", "\N{ARABIC-INDIC DIGIT ONE}"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a size such as"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("30s", 30), ("5m", 300), ("2h", 7200), (2.5, 2.5), ("7", 7)]
)
def test_durations(text: object, seconds: float) -> None:
    assert parse_seconds(text) == seconds
