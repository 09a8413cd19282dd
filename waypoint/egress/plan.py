"""The addresses of sessions and of the router, and the router's rules (nft(8)).

Every session has the same address, so that what its programs have bound, and told others, is right in each copy. In the
router each session has another one, by its index: packets are rewritten on their way in and out. Nothing of
this is seen on the machine's network, where pasta(1) speaks, by sockets of its own.
"""

import socket
from collections.abc import Iterable

from waypoint.linux.net.rtnetlink import PairEnd, Prefix

OWN_ADDRESS = "10.77.0.2"
OWN_ADDRESS_IPV6 = "fd10:77::2"
INSIDE = (Prefix.parse(OWN_ADDRESS), Prefix.parse(OWN_ADDRESS_IPV6))
EVERYTHING = (Prefix.parse("0.0.0.0/0"), Prefix.parse("::/0"))
RESOLVER = "10.77.0.1"
PUBLISHER, PUBLISHER_IPV6 = "10.77.0.3", "fd10:77::3"  # in a session: what comes by its published ports is theirs
OUT = "out"  # the router's interface to pasta
PASTA = ("-a", "10.77.1.2", "-n", "30", "-g", "10.77.1.1", "--dns-forward", RESOLVER)
_OWN_IPV6 = "fd10:77:1::2"  # of the router's interface to pasta
PASTA_IPV6 = ("-a", _OWN_IPV6, "-g", "fd10:77:1::1")
INDICES = range(1, 2048)  # of sessions that may reach all that is public
LISTED = range(2048, 4096)  # of those that may reach nothing but what is opened for them
MOST_CONNECTIONS = 1024  # of one session at a time
# In seconds. For as long as pasta may keep a connection without traffic, it is counted, however its two sides stand.
CONNTRACK = {f"tcp_timeout_{state}": 7_500 for state in ("fin_wait", "close_wait", "max_retrans", "unacknowledged")}
HARDWARE = b"\x02\x00\x0a\x4d\x00\x01"  # of both ends of each pair: the second bit says that nobody has made it
MTU = 65_520  # pasta's
SESSION_END = PairEnd("eth0", 77)
# Networks that belong to somebody else than the public: RFC 6890 and its successors.
OF_SESSIONS = ("100.64.0.0/16", "fd10:77:2::/64")  # in the router
_NAT64 = bytes.fromhex("0064ff9b") + bytes(8)
_CLOSED = (
    *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24"),
    *("192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/3"),
    *("::/96", "::ffff:0:0/96", "64:ff9b:1::/48", "fc00::/7", "fe80::/9", "ff00::/8"),
)


_NAMES = f"""
chain names {{{{
  type nat hook prerouting priority dstnat;
  iifname "wp-*" ip daddr {RESOLVER} tcp dport 53 dnat ip to {{resolver}}
}}}}
"""


def by_nat64(address: str) -> str:
    """The IPv6 address that leads to one of IPv4, where the machine's network has a NAT64 (RFC 6052)."""
    return socket.inet_ntop(socket.AF_INET6, _NAT64 + socket.inet_aton(address))


def _by_6to4(address: str) -> str:
    """The beginning of the IPv6 addresses that lead there by 6to4 (RFC 3056)."""
    return socket.inet_ntop(socket.AF_INET6, b"\x20\x02" + socket.inet_aton(address) + bytes(10))


def _embedded(network: str) -> tuple[str, str]:
    """The networks of IPv6 that lead to a network of IPv4."""
    address, _, bits = network.partition("/")
    return f"{by_nat64(address)}/{96 + int(bits)}", f"{_by_6to4(address)}/{16 + int(bits)}"


CLOSED = (*_CLOSED, *(one for network in _CLOSED if ":" not in network for one in _embedded(network)))


def router_end(index: int) -> PairEnd:
    return PairEnd(f"wp-{'l' if index in LISTED else 's'}{index}", 1000 + index)


def own_addresses(index: int) -> tuple[Prefix, Prefix]:
    """The addresses that the session with `index` has in the router."""
    four, six = _own(index)
    return Prefix.parse(four), Prefix.parse(six)


def _own(index: int) -> tuple[str, str]:
    return f"100.64.{index >> 8}.{index & 255}", f"fd10:77:2::{index:x}"


def is_ipv6(network: str) -> bool:
    return ":" in network


# Random ports: copies choose the same ones, and pasta may not have done with a port that is free again here.
# pasta before November 2023 refuses a connection by a reset without ACK, which no client takes for one, and tells its
# window in a packet without any flag, which no host takes: both get their ACK. A packet that belongs to no connection
# is dropped: a reset would end the one that pasta has.
# pasta of Debian 12 answers to the address that it has seen last: to `::`, while the kernel asks whether a link-local
# address is another's; that connection hangs. So the router says nothing to pasta in any other name than its own.
# Before fragments are put together (priority -400): those of two sessions must not become one packet, and all sessions
# have the same address until then. What would be counted as the end of a connection (conntrack) and never reach pasta,
# as its time to live is over or it has options, would leave pasta a connection that nobody counts.
_CHAINS = f"""
chain enter {{
  type filter hook prerouting priority -450;
  iifname "wp-*" ip hdrlength != 5 drop
  iifname "wp-*" ip ttl set 64
  iifname "wp-*" ip6 hoplimit set 64
  iifname "wp-*" ip saddr set iifname map @own4
  iifname "wp-*" ip6 saddr set iifname map @own6
  iifname "{OUT}" tcp flags & (rst | ack) == rst tcp flags set rst | ack
  iifname "{OUT}" tcp flags == 0x0 tcp flags set ack
}}
chain leave {{
  type filter hook postrouting priority 300;
  oifname "wp-*" ip daddr set 10.77.0.2
  oifname "wp-*" ip6 daddr set fd10:77::2
}}
chain output {{
  type filter hook output priority filter;
  oifname "{OUT}" ip6 saddr != {_OWN_IPV6} drop
}}
chain hide {{
  type nat hook postrouting priority srcnat;
  oifname "{OUT}" masquerade fully-random
}}
chain input {{
  type filter hook input priority filter; policy drop;
  ct state invalid drop
  meta l4proto tcp reject with tcp reset
  iifname "{OUT}" icmpv6 type {{ nd-neighbor-solicit, nd-neighbor-advert }} accept
}}
chain forward {{
  type filter hook forward priority filter; policy drop;
  iifname "wp-*" oifname != "{OUT}" goto refuse
  ct state established,related accept
  ct state invalid drop
  iifname != "wp-*" drop
  ip daddr {RESOLVER} udp dport 53 goto limited
  ct original ip daddr {RESOLVER} tcp dport 53 goto limited
  iifname . ip daddr @open4 goto limited
  iifname . ip6 daddr @open6 goto limited
  iifname "wp-l*" goto refuse
  ip daddr @closed4 goto refuse
  ip6 daddr @closed6 goto refuse
  ip daddr @host4 goto refuse
  ip6 daddr @host6 goto refuse
  goto limited
}}
chain limited {{
  add @count4 {{ ip saddr ct count over {MOST_CONNECTIONS} }} goto refuse
  add @count6 {{ ip6 saddr ct count over {MOST_CONNECTIONS} }} goto refuse
  accept
}}
chain refuse {{
  meta l4proto tcp reject with tcp reset
  drop
}}
"""


def rules(host: Iterable[str], resolver: str) -> str:
    """The rules of a new router, to which those of `tell_own` belong. `host`: the addresses of the machine, which are
    not to be reached. `resolver`: the one that the machine asks, to which a session's questions by TCP are led (pasta
    sees to those by UDP); "": to none.
    """
    names = _NAMES.format(resolver=resolver) if resolver else ""
    return f"table inet waypoint {{\n{''.join(_sets())}{_CHAINS}{names}}}\n{tell_host(host)}\n"


def _sets() -> Iterable[str]:
    for version, kind in ((4, "ipv4_addr"), (6, "ipv6_addr")):
        closed = ", ".join(one for one in CLOSED if is_ipv6(one) is (version == 6))
        yield f"map own{version} {{ type ifname : {kind}; }}\n"
        yield f"set closed{version} {{ type {kind}; flags interval; elements = {{ {closed} }}; }}\n"
        yield f"set open{version} {{ type ifname . {kind}; flags interval; }}\n"
        yield f"set host{version} {{ type {kind}; }}\n"
        yield f"set count{version} {{ type {kind}; size 65535; flags dynamic; }}\n"


def tell_own(most: int) -> Iterable[str]:
    """The commands that tell a new router which addresses sessions have in it, for `most` sessions each."""
    indices = range(INDICES.start, LISTED.stop)
    for begin in range(0, len(indices), most):
        yield "\n".join(_tell_own(version, indices[begin : begin + most]) for version in (4, 6))


def _tell_own(version: int, indices: range) -> str:
    own = ", ".join(f"{router_end(index).name} : {_own(index)[version == 6]}" for index in indices)
    return f"add element inet waypoint own{version} {{ {own} }}"


def tell_host(host: Iterable[str]) -> str:
    """The commands by which the addresses `host`, and no others, are the machine's."""
    lines = ["flush set inet waypoint host4", "flush set inet waypoint host6"]
    return "\n".join([*lines, *(f"add element inet waypoint {_set('host', one)} {{ {one} }}" for one in host)])


def tell_open(index: int, networks: Iterable[str], verb: str = "add") -> str:
    """The commands that open networks for a session. `verb`: `delete` closes them again."""
    name = router_end(index).name
    return "\n".join(f"{verb} element inet waypoint {_set('open', one)} {{ {name} . {one} }}" for one in networks)


def _set(name: str, network: str) -> str:
    return f"{name}{6 if is_ipv6(network) else 4}"
