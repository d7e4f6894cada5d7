"""Which device, port and GID are taken, from tables as hosts have them."""

import dataclasses

from mooncask.daemon.transport.rdma.ports import ETHERNET, INFINIBAND, Gid, Port, choose_gid, choose_place, why_apart

LINK_LOCAL_V1 = Gid(0, "fe80::1", False)
LINK_LOCAL_V2 = Gid(1, "fe80::1", True)
IPV4_V1 = Gid(2, "::ffff:10.0.0.5", False)
IPV4_V2 = Gid(3, "::ffff:10.0.0.5", True)
SECOND_IPV4_V2 = Gid(5, "0000:0000:0000:0000:0000:ffff:0a01:0005", True)
IPV6_V2 = Gid(7, "2001:db8::5", True)
PORT = Port("mlx5_0", 1, True, ETHERNET, (), 0, 3, 1 << 30, 16)


def port(*gids: Gid, **changes: object) -> Port:
    return dataclasses.replace(PORT, gids=gids, **changes)


def test_the_roce_v2_entry_with_the_ipv4_address_is_taken_wherever_it_is_in_the_table() -> None:
    assert choose_gid(port(LINK_LOCAL_V1, LINK_LOCAL_V2, IPV4_V1, IPV4_V2), "") == IPV4_V2
    assert choose_gid(port(IPV6_V2, LINK_LOCAL_V2, dataclasses.replace(IPV4_V2, index=12)), "").index == 12


def test_of_several_addresses_the_one_under_which_others_reach_this_node_is_taken() -> None:
    table = port(IPV4_V2, SECOND_IPV4_V2, IPV6_V2)
    assert choose_gid(table, "10.1.0.5") == SECOND_IPV4_V2
    assert choose_gid(table, "2001:db8::5") == IPV6_V2
    assert choose_gid(table, "node-1.example") == IPV4_V2


def test_without_ipv4_a_routed_address_comes_before_a_link_local_one() -> None:
    assert choose_gid(port(LINK_LOCAL_V2, IPV6_V2), "") == IPV6_V2
    assert choose_gid(port(LINK_LOCAL_V2), "") == LINK_LOCAL_V2


def test_a_port_that_only_speaks_the_first_roce_has_no_usable_gid() -> None:
    assert choose_gid(port(LINK_LOCAL_V1, IPV4_V1), "10.0.0.5") is None
    assert choose_place([port(LINK_LOCAL_V1, IPV4_V1)], "10.0.0.5") is None


def test_infiniband_takes_the_ports_own_gid() -> None:
    own = Gid(0, "fe80::506b:4b03:f5:1", False)
    assert choose_gid(port(own, link_layer=INFINIBAND), "10.0.0.5") == own


def test_a_port_that_is_down_is_not_taken_and_the_one_with_the_nodes_address_comes_first() -> None:
    down = port(SECOND_IPV4_V2, device="down", active=False)
    first, second = port(IPV4_V2, device="first"), port(SECOND_IPV4_V2, device="second")
    assert choose_place([down, first, second], "10.1.0.5").port.device == "second"
    assert choose_place([down, first, second], "10.9.9.9").port.device == "first"
    assert choose_place([down], "10.1.0.5") is None
    assert choose_place([], "10.1.0.5") is None


def test_ends_on_different_kinds_of_networks_are_told_apart() -> None:
    ipv4, other = "::ffff:10.0.0.5", "::ffff:10.7.0.9"
    assert why_apart(ETHERNET, ipv4, ETHERNET, other) == ""
    assert why_apart(INFINIBAND, "fe80::1", INFINIBAND, "fe80::2") == ""
    assert "infiniband" in why_apart(ETHERNET, ipv4, INFINIBAND, "fe80::2")
    assert "address family" in why_apart(ETHERNET, ipv4, ETHERNET, "2001:db8::5")
