"""Things of the machine and of other sessions that a session must not reach: one row for each thing.

Each row has an attempt (an expression of attempts.py) and the exact outcome that it must have in a session. Outside of
all sessions, or in the session that has the thing, the same attempt must succeed: otherwise the row proves nothing.
"""

from typing import NamedTuple

from tests.isolation.attempts import REACHED


class Wall(NamedTuple):
    """`refused`: the outcome in a session. `host_root`: the outcome for root of a session with the host's user ids;
    `user`: the outcome for an ordinary user; both may be "", which means the same as `refused`.

    `is_others`: the thing belongs to another session, not to the machine. `may_lack`: some machines do not have the
    thing, or their own root may not reach it. `of_network`: a session on the machine's network reaches it. `by_filter`:
    only the filter of system calls refuses the attempt, also in a user namespace that the session makes. `nested`: in
    such a namespace the attempt succeeds, but reaches only a thing of the namespace.
    """

    attempt: str
    refused: str
    host_root: str = ""
    user: str = ""
    is_others: bool = False
    may_lack: bool = False
    of_network: bool = False
    by_filter: bool = False
    nested: bool = False

    def expected(self, *, is_root: bool, has_host_ids: bool, on_network: bool = False, filtered: bool = True) -> str:
        """Return the outcome that the attempt must have in a session with these properties."""
        if (self.of_network and on_network) or (self.by_filter and not filtered):
            return REACHED
        if not is_root:
            return self.user or self.refused
        return (self.host_root if has_host_ids else "") or self.refused


def _setting(path: str) -> Wall:
    """Only the machine's root may write the file. With the host's user ids, the session's mount is read-only."""
    return Wall(f"opens_to_write({path!r})", "EACCES", host_root="EROFS")


def _hidden(path: str) -> Wall:
    return Wall(f"opens_to_write({path!r})", "ENOENT")


def _device(name: str) -> Wall:
    return Wall(f"opens('/dev/{name}')", "ENOENT")


def _refused(attempt: str) -> Wall:
    return Wall(attempt, "EPERM")


def _rare(wall: Wall) -> Wall:
    return wall._replace(may_lack=True)


def _of_network(wall: Wall) -> Wall:
    return wall._replace(of_network=True)


def _nested(wall: Wall) -> Wall:
    return wall._replace(nested=True)


def _others(attempt: str, refused: str) -> Wall:
    return Wall(attempt, refused, is_others=True)


_SETTINGS = {
    "proc: core_pattern": _setting("/proc/sys/kernel/core_pattern"),
    "proc: modprobe": _rare(_setting("/proc/sys/kernel/modprobe")),
    "proc: panic": _setting("/proc/sys/kernel/panic"),
    "proc: printk": _setting("/proc/sys/kernel/printk"),
    "proc: overcommit": _setting("/proc/sys/vm/overcommit_memory"),
    "proc: drop caches": _setting("/proc/sys/vm/drop_caches"),
    "proc: file-max": _setting("/proc/sys/fs/file-max"),
    "proc: hostname": _setting("/proc/sys/kernel/hostname"),
    "proc: forwarding": _setting("/proc/sys/net/ipv4/ip_forward"),
    "proc: interrupts": _rare(_setting("/proc/irq/default_smp_affinity")),
    "proc: mtrr": _rare(_setting("/proc/mtrr")),
    "proc: sysrq": _rare(_setting("/proc/sysrq-trigger")),
    "proc: pressure": _rare(Wall("opens_to_write('/proc/pressure/memory')", "EROFS")),
    "sys: ksm": _rare(Wall("opens_to_write('/sys/kernel/mm/ksm/run')", "EROFS")),
    "sys: huge pages": _rare(Wall("opens_to_write('/sys/kernel/mm/transparent_hugepage/enabled')", "EROFS")),
    "sys: power": _rare(_hidden("/sys/power/state")),
    "sys: reboot": _rare(_hidden("/sys/kernel/reboot/mode")),
    "sys: processor": _rare(Wall("opens_to_write('/sys/devices/system/cpu/cpu1/online')", "EROFS")),
    "sys: module parameter": _rare(_hidden("/sys/module/printk/parameters/time")),
    "sys: disk scheduler": _rare(Wall("opens_to_write(f'/sys/block/{facts.disk}/queue/scheduler')", "ENOENT")),
    "sys: disk event": _rare(Wall("opens_to_write(f'/sys/block/{facts.disk}/uevent')", "ENOENT")),
    "sys: network queue": _hidden("/sys/class/net/lo/tx_queue_len"),
    "sys: network interfaces": Wall("lists('/sys/class/net')", "empty"),
    "sys: pools": _rare(Wall("lists('/sys/fs/btrfs')", "ENOENT")),
    "sys: devices": Wall("lists('/sys/devices/virtual')", "empty"),
}

_KERNEL = {
    "kernel: a module": _rare(_refused("loads_a_module()")),
    "kernel: a module's file": _rare(_refused("loads_a_module_file()")),
    "kernel: remove a module": _rare(_refused("call('delete_module', b'waypoint_none', 0, passed=(errno.ENOENT,))")),
    "kernel: bpf programs": _rare(_refused("lists_bpf_programs()")),
    "kernel: another kernel": _rare(_refused("loads_a_kernel()")),
    "kernel: reboot": _refused("sets_ctrl_alt_del()"),
    "kernel: its log": _refused("call('klogctl', 3, ctypes.create_string_buffer(64), 64)"),
    "kernel: its log's file": Wall("opens('/proc/kmsg')", "EACCES", host_root="EPERM"),
    "kernel: the clock": _refused("call('settimeofday', None, None)"),
    "kernel: the clock's speed": _refused("steers_the_clock()"),
    "kernel: swap": _rare(_refused("call('swapon', b'/waypoint-none', 0, passed=(errno.ENOENT,))")),
    "kernel: no swap": _rare(_refused("call('swapoff', b'/waypoint-none', passed=(errno.ENOENT,))")),
    "kernel: ports": _rare(_refused("gets_io_ports()")),
    "kernel: accounts": _rare(_refused("call('acct', b'/waypoint-none', passed=(errno.ENOENT,))")),
    "kernel: fanotify": _rare(_refused("decides_about_opens()")),
    "kernel: hang up": _refused("call('vhangup')"),
    "kernel: hostname": _refused("names_the_machine()"),
    "kernel: audit": _rare(Wall("asks_the_audit()", "ECONNREFUSED")),
    "kernel: randomness": _refused("credits_randomness()"),
    "kernel: the console": _refused("takes_the_console()"),
    "kernel: priority": Wall("os.setpriority(os.PRIO_PROCESS, 0, -15)", "EACCES"),
    "kernel: real time": _refused("os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))"),
    "kernel: real time of disks": _refused("reads_before_all()"),
    "kernel: never killed": _rare(Wall("is_never_killed()", "EACCES")),
    "kernel: a hard limit": _rare(_refused("raises_a_limit()")),
    # MODULE, RAWIO, PTRACE, PACCT, ADMIN, BOOT, NICE, RESOURCE, TIME, TTY_CONFIG, MKNOD, LINUX_IMMUTABLE, NET_ADMIN,
    # MAC_ADMIN, SYSLOG, PERFMON, BPF, CHECKPOINT_RESTORE, DAC_READ_SEARCH
    "kernel: capabilities": _nested(
        Wall("holds(*range(16, 18), *range(19, 28), 9, 12, 33, 34, 38, 39, 40, 2)", "none")
    ),
}

_MOUNTS = {
    **{f"mount: {fstype}": _refused(f"mounts({fstype!r})") for fstype in ("proc", "sysfs", "cgroup2")},
    **{f"mount: {fstype}": _rare(_refused(f"mounts({fstype!r})")) for fstype in ("debugfs", "bpf")},
    "mount: tmpfs": _nested(_refused("mounts('tmpfs')")),
    "mount: binfmt_misc": _nested(
        _rare(_refused("mounts('binfmt_misc')"))
    ),  # since Linux 6.7 each user namespace has its own
    "mount: cgroups in a namespace of its own": _refused("mounts_cgroups()")._replace(by_filter=True),
    "lease: opening a file waits for its holder": Wall("leases()", "EINVAL", by_filter=True),
    "mount: without a mask": _refused("unmounts('/proc')"),
    "mount: without a local mount": _refused("unmounts(facts.second)"),
    "mount: writable": _refused("remounts('/proc')"),
    "mount: a copy": _refused("call('open_tree', -100, b'/', 1)"),
    "mount: by descriptor": _nested(_refused("call('fsopen', b'tmpfs', 0)")),
    "mount: a namespace": _nested(_refused("call('unshare', 0x20000)")),
    "mount: another's namespace": Wall("call('setns', os.open(f'/proc/{facts.pid}/ns/mnt', os.O_RDONLY), 0)", "ENOENT"),
    "mount: the root by chroot": Wall("leaves_a_chroot(facts.root)", "its own", user="EPERM"),
    "mount: the root of pid 1": _rare(
        Wall("is_root_of_the_machine(facts.root, '/proc/1/root/../..')", "its own", user="EACCES")
    ),
}

_FILES = {
    **{
        f"device: {name}": _rare(_device(name))
        for name in ("kmsg", "mem", "kvm", "fuse", "loop-control", "btrfs-control", "vsock", "console", "tty1")
    },
    "device: tun": _rare(_device("net/tun")),
    "device: latency": _rare(_device("cpu_dma_latency")),
    "device: the disk": _rare(Wall("opens(f'/dev/{facts.disk}')", "ENOENT")),
    "device: a new node of the disk": _rare(_refused("makes_a_node_of(facts.disk_number)")),
    "device: a node in the base": Wall("opens(f'{facts.folder}/node')", "EACCES"),
    "device: terminals": Wall("sees_terminals_of(facts.terminals)", "its own"),
    "file: by its number": _refused("opens_by_handle(facts.folder, *facts.handle)"),
    "file: immutable": _refused("makes_immutable()"),
    "file: overlay's attributes": _refused("sets_a_trusted_attribute()"),
    "file: /dev/shm": Wall("opens(facts.shm)", "ENOENT"),
    "file: /run": Wall("opens(f'{facts.run}/file')", "ENOENT"),
    "file: names.db": Wall("opens(f'{facts.home}/names.db')", "ENOENT", user="EACCES"),
    "file: the pool": Wall("lists(facts.home)", "empty", user="EACCES"),
    "file: a session's record": Wall("opens(f'{facts.session}/record.json')", "ENOENT"),
    "file: a session's output": Wall("opens(f'{facts.session}/ring')", "ENOENT"),
    "file: a cgroup": Wall("opens_to_write(f'{facts.cgroup}/cgroup.procs')", "ENOENT"),
}

_TALK = {
    "process: a signal": Wall("os.kill(facts.pid, 0)", "ESRCH"),
    "process: trace": Wall("traces(facts.pid)", "ESRCH"),
    "process: memory": Wall("reads_memory(facts.pid)", "ESRCH"),
    "process: a descriptor": Wall("os.pidfd_open(facts.pid)", "ESRCH"),
    "process: environment": Wall("opens(f'/proc/{facts.pid}/environ')", "ENOENT"),
    "process: secrets": Wall("sees_a_process_with(facts.secret)", "not there"),
    "talk: loopback": _of_network(Wall("connects(facts.port)", "ECONNREFUSED")),
    "talk: the machine's address": _of_network(_rare(Wall("connects(facts.port, facts.address)", "EHOSTUNREACH"))),
    "talk: an abstract name": _of_network(Wall("connects_to('\\0' + facts.abstract)", "ECONNREFUSED")),
    "talk: a socket in /run": Wall("connects_to(facts.socket)", "ENOENT"),
    "talk: a socket in the base": Wall("connects_to(f'{facts.folder}/socket')", "ECONNREFUSED"),
    "talk: the control socket": Wall("connects_to(facts.control)", "ENOENT"),
    "talk: a FIFO in the base": Wall("writes_to_the_reader_of(f'{facts.folder}/fifo')", "ENXIO"),
    "talk: shared memory": Wall("call('shmget', facts.key, 0, 0)", "ENOENT"),
    "talk: a queue": Wall("call('msgget', facts.key, 0)", "ENOENT"),
    "talk: semaphores": Wall("call('semget', facts.key, 0, 0)", "ENOENT"),
    "talk: a named queue": Wall("call('mq_open', facts.queue.encode(), os.O_RDONLY)", "ENOENT"),
    "talk: a key's description": _rare(Wall("has_line('/proc/keys', facts.secret)", "not there")),
    "talk: interfaces": _of_network(_rare(Wall("sees_interfaces()", "its own"))),
    "talk: an interface's state": _refused("sets_an_interface()"),
}

_OTHERS = {
    "other session: a port": _others("connects_to_held()", "ECONNREFUSED"),
    "other session: an abstract name": _others("connects_to_held_name()", "ECONNREFUSED"),
    "other session: shared memory": _others("has_held_memory()", "ENOENT"),
    "other session: a file": _others("opens_held('/tmp')", "ENOENT"),
    "other session: /dev/shm": _others("opens_held('/dev/shm')", "ENOENT"),
    "other session: a process": _others("sees_a_process_with(facts.held)", "not there"),
}

WALLS: dict[str, Wall] = {**_SETTINGS, **_KERNEL, **_MOUNTS, **_FILES, **_TALK, **_OTHERS}
