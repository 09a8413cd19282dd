"""The addresses of sessions and of the router, and the router's rules (nft(8)).

Inside, every session has the same address, so that an address which a program has bound or sent stays valid in every
fork. In the router, each session has a different address, which depends on its index: the router's rules rewrite the
addresses of packets from and to a session. The machine's network sees only ordinary sockets of pasta(1).
"""

from collections.abc import Iterable, Sequence

from waypoint.linux.net.rtnetlink import PairEnd, Prefix

INSIDE = (Prefix.parse("10.77.0.2"), Prefix.parse("fd10:77::2"))
EVERYTHING = (Prefix.parse("0.0.0.0/0"), Prefix.parse("::/0"))
RESOLVER = "10.77.0.1"
OUT = "out"  # the router's interface to pasta
PASTA = ("-a", "10.77.1.2", "-n", "30", "-g", "10.77.1.1", "--dns-forward", RESOLVER)
PASTA_IPV6 = ("-a", "fd10:77:1::2", "-g", "fd10:77:1::1")
_PART = 1000  # elements of a set in one message
INDICES = range(1, 2048)  # indices of sessions that may reach all public addresses
LISTED = range(2048, 4096)  # indices of sessions that may reach only the networks in their --allow-net
MOST_CONNECTIONS = 1024  # the limit for one session at a time
# After so many seconds without traffic, conntrack forgets a connection. In every TCP state this is as long as pasta may
# keep a connection, so that MOST_CONNECTIONS counts all of pasta's connections.
CONNTRACK = {f"tcp_timeout_{state}": 7_500 for state in ("fin_wait", "close_wait", "max_retrans", "unacknowledged")}
HARDWARE = b"\x02\x00\x0a\x4d\x00\x01"  # MAC address of both ends of each veth pair; second bit: locally administered
MTU = 65_520  # pasta's
SESSION_END = PairEnd("eth0", 77)
OF_SESSIONS = ("100.64.0.0/16", "fd10:77:2::/64")  # addresses of sessions in the router
# Networks that are not public: the special-purpose registries of IANA (RFC 6890), with 6to4 and Teredo, whose relays
# unpack packets to any address of IPv4.
_CLOSED4 = (
    *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24"),
    *("192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24"),
    "224.0.0.0/3",
)
_CLOSED6 = (
    *("::/96", "::ffff:0:0/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"),
    *("5f00::/16", "fc00::/7", "fe80::/9", "ff00::/8"),
)


def by_nat64(network: str) -> str:
    """The addresses of IPv6 by which a NAT64 reaches an IPv4 network (RFC 6052). The others stay open: in a network
    without IPv4, they lead to the public addresses of IPv4.
    """
    address, _, bits = network.partition("/")
    first, second, third, fourth = map(int, address.split("."))
    return f"64:ff9b::{first << 8 | second:x}:{third << 8 | fourth:x}/{96 + int(bits or 32)}"


CLOSED = (*_CLOSED4, *_CLOSED6, *map(by_nat64, _CLOSED4))


def router_end(index: int) -> PairEnd:
    return PairEnd(f"wp-{'l' if index in LISTED else 's'}{index}", 1000 + index)


def own_addresses(index: int) -> tuple[str, str]:
    return f"100.64.{index >> 8}.{index & 255}", f"fd10:77:2::{index:x}"


def is_ipv6(network: str) -> bool:
    return ":" in network


# `masquerade fully-random`: forks of a session choose the same ports, and pasta may still use a port that conntrack
# already considers free.
# `enter`, ACK: pasta before November 2023 refuses a connection by a reset without ACK, and sends its window in a packet
# without flags. Clients ignore both packets without an ACK, so it is added.
# `enter`, priority -450: the addresses must be rewritten before fragments are reassembled (-400). All sessions have the
# same address before, so fragments of two sessions could become one packet.
# `enter`, ttl and header length: a packet that ends a connection may not reach pasta because its ttl is used up or it
# has options. conntrack would then count the connection as ended, although pasta keeps it. `invalid drop`: the answer
# to a packet without a connection would be a reset, which would end pasta's connection.
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


def rules(host: Iterable[str]) -> list[str]:
    """Return the nft commands with the rules of a new router, in parts: without root, the kernel takes no long message.
    `host`: the machine's networks, which are refused.
    """
    first = f"table inet waypoint {{\n{''.join(_sets())}{_CHAINS}}}\n{tell_host(host)}\n"
    return [first, *(_own(version, part) for version in (4, 6) for part in _batched((*INDICES, *LISTED), _PART))]


def _own(version: int, indices: Iterable[int]) -> str:
    own = ", ".join(f"{router_end(i).name} : {own_addresses(i)[version == 6]}" for i in indices)
    return f"add element inet waypoint own{version} {{ {own} }}\n"


def _batched(indices: Sequence[int], size: int) -> Iterable[Sequence[int]]:
    return (indices[place : place + size] for place in range(0, len(indices), size))


def _sets() -> Iterable[str]:
    for version, kind in ((4, "ipv4_addr"), (6, "ipv6_addr")):
        closed = ", ".join(one for one in CLOSED if is_ipv6(one) is (version == 6))
        yield f"map own{version} {{ type ifname : {kind}; }}\n"
        yield f"set closed{version} {{ type {kind}; flags interval; elements = {{ {closed} }}; }}\n"
        yield f"set open{version} {{ type ifname . {kind}; flags interval; }}\n"
        yield f"set host{version} {{ type {kind}; flags interval; auto-merge; }}\n"
        yield f"set count{version} {{ type {kind}; size 65535; flags dynamic; }}\n"


def tell_host(host: Iterable[str]) -> str:
    """Return the nft commands that replace the set of the machine's networks by `host`."""
    lines = ["flush set inet waypoint host4", "flush set inet waypoint host6"]
    return "\n".join([*lines, *(f"add element inet waypoint {_set('host', one)} {{ {one} }}" for one in host)])


def tell_open(index: int, networks: Iterable[str], verb: str = "add") -> str:
    """Return the nft commands that allow a session to reach `networks` or, with the verb `delete`, that end this."""
    name = router_end(index).name
    return "\n".join(f"{verb} element inet waypoint {_set('open', one)} {{ {name} . {one} }}" for one in networks)


def _set(name: str, network: str) -> str:
    return f"{name}{6 if is_ipv6(network) else 4}"
