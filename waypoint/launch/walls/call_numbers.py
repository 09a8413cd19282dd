"""The numbers, by architecture, of the system calls that are refused in sessions, always or with certain arguments.

They are copied from the kernel's tables: arch/x86/entry/syscalls/, scripts/syscall.tbl, arch/arm/tools/syscall.tbl.
"""

X86_64, I386, AARCH64, ARM = "x86_64", "i386", "aarch64", "arm"

AUDIT_NUMBERS = {X86_64: 0xC000003E, I386: 0x40000003, AARCH64: 0xC00000B7, ARM: 0x40000028}
"""The numbers that identify architectures in filters (AUDIT_ARCH_..., linux/audit.h)."""

ON_MACHINE = {X86_64: (X86_64, I386), AARCH64: (AARCH64, ARM)}
"""The architectures whose programs can run on a machine, by the machine's architecture (uname(2)). x32 is part of
x86_64: its calls have the same numbers with one more bit.
"""

LAST = 469
"""The newest call that was reviewed for the list (file_setattr, Linux 6.17). From 424 on, a call has the same number on
all architectures.
"""

ARM_OWN = range(0xF0000, 0xF0800)
"""System calls that only arm has, for its caches and the thread pointer (__ARM_NR_..., asm/unistd.h)."""

# Columns: x86_64, i386, aarch64, arm. "-": the architecture has no such call.
_TABLE = """
acct                  163     51      89   51
add_key               248    286     217  309
bpf                   321    357     280  386
clock_settime         227    264     112  262
clock_settime64         -    404       -  404
clone                  56    120     220  120
clone3                435    435     435  435
create_module         174    127       -    -
delete_module         176    129     106  129
fanotify_init         300    338     262  367
fcntl                  72     55      25   55
fcntl64                 -    221       -  221
finit_module          313    350     273  379
fsconfig              431    431     431  431
fsmount               432    432     432  432
fsopen                430    430     430  430
fspick                433    433     433  433
get_kernel_syms       177    130       -    -
get_mempolicy         239    275     236  320
init_module           175    128     105  128
io_uring_enter        426    426     426  426
io_uring_register     427    427     427  427
io_uring_setup        425    425     425  425
ioctl                  16     54      29   54
ioperm                173    101       -    -
iopl                  172    110       -    -
kexec_file_load       320      -     294  401
kexec_load            246    283     104  347
keyctl                250    288     219  311
lookup_dcookie        212    253      18  249
memfd_create          319    356     279  385
mmap                    9      -     222    -
mmap2                   -    192       -  192
shmget                 29    395     194  307
mbind                 237    274     235  319
migrate_pages         256    294     238  400
mount                 165     21      40   21
mount_setattr         442    442     442  442
move_mount            429    429     429  429
move_pages            279    317     239  344
nfsservctl            180    169      42  169
open_by_handle_at     304    342     265  371
open_tree             428    428     428  428
open_tree_attr        467    467     467  467
perf_event_open       298    336     241  364
personality           135    136      92  136
pivot_root            155    217      41  218
query_module          178    167       -    -
quotactl              179    131      60  131
quotactl_fd           443    443     443  443
reboot                169     88     142   88
request_key           249    287     218  310
set_mempolicy         238    276     237  321
set_mempolicy_home_node 450  450     450  450
setdomainname         171    121     162  121
sethostname           170     74     161   74
setns                 308    346     268  375
settimeofday          164     79     170   79
socket                 41    359     198  281
socketcall              -    102       -  102
socketpair             53    360     199  288
stime                   -     25       -   25
swapoff               168    115     225  115
swapon                167     87     224   87
_sysctl               156    149       -  149
sysfs                 139    135       -  135
syslog                103    103     116  103
umount                  -     22       -   22
umount2               166     52      39   52
unshare               272    310      97  337
uselib                134     86       -   86
userfaultfd           323    374     282  388
ustat                 136     62       -   62
vhangup               153    111      58  111
vm86                    -    166       -    -
vm86old                 -    113       -    -
"""


def _columns() -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {architecture: {} for architecture in AUDIT_NUMBERS}
    for row in _TABLE.split("\n")[1:-1]:
        name, *numbers = row.split()
        for architecture, number in zip(AUDIT_NUMBERS, numbers, strict=True):
            if number != "-":
                found[architecture][name] = int(number)
    return found


NUMBERS = _columns()
"""By architecture, the number of each call that the architecture has."""
