"""
What the kernel prints that begins with a text which a user chose, message by message: what no shape
may take for a fault.

`{c}` stands for the name (15 bytes of a process, or of a network device without blanks, colons and
slashes), `{r}` for a longer text that is the user's too: the name of a file, a path, a cpuset.
Found by reading every use of `current->comm` in Linux 6.16 ("treewide: Switch from tsk->comm to
tsk->comm_str", linux-fsdevel, 2025-07-16) and the older sources named here; Linux 4.18 to 6.18.
"""

from __future__ import annotations

from dataclasses import dataclass

NAME = 15  # bytes of a process's or a network device's name
PREFIX = 127  # bytes of the prefix of a rule of the firewall


@dataclass(frozen=True)
class Message:
    text: str
    source: str
    needs: str = ""  # what an ordinary user needs beyond a process; empty where nothing


SEGFAULT = Message(
    "{c}[123]: segfault at 0 ip 000055d0c0ffee12 sp 00007ffd3b1c9a40 error 6 in"
    " {r}[55d0c0ffe000+1000] likely on CPU 3 (core 3, socket 0)",
    "arch/x86/mm/fault.c",
)
OF_A_PROCESS = (
    SEGFAULT,
    Message(
        (
            "{c}[123]: segfault at 0 ip 000055d0c0ffee12 sp 00007ffd3b1c9a40 error 6 in "
            "{r}[55d0c0ffe000+1000]"
        ),
        "arch/x86/mm/fault.c (to 6.5)",
    ),
    Message(
        (
            "{c}[123]: unhandled exception: DABT (lower EL), ESR 0x92000046, level 2 translation "
            "fault in {r}[1+2]"
        ),
        "arch/arm64/kernel/traps.c",
    ),
    Message(
        (
            "{c}[123] bad frame in rt_sigreturn frame:00007 ip:1 sp:2 orax:ff in "
            "{r}[7f21b1a00000+800000]"
        ),
        "arch/x86/kernel/signal.c",
    ),
    Message(
        "{c}[123] vsyscall attempted with vsyscall=none ip:1 cs:33 sp:2 ax:3 si:4 di:5",
        "arch/x86/entry/vsyscall/vsyscall_64.c",
    ),
    Message(
        "{c}[123] control protection ip:1 sp:2 ssp:3 error:1(near-ret) in {r}[1+2]",
        "arch/x86/kernel/cet.c",
        "a shadow stack",
    ),
    Message(
        "{c}[123]: memfd_create() requires MFD_NOEXEC_SEAL with vm.memfd_noexec=2",
        "mm/memfd.c",
        "a namespace of processes",
    ),
    Message(
        "{c}[123]: memfd_create() called without MFD_EXEC or MFD_NOEXEC_SEAL set",
        "mm/memfd.c (6.3 to 6.6)",
    ),
    Message(
        "{c} invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
        "mm/oom_kill.c",
    ),
    Message(
        (
            "{c}: page allocation failure: order:5, mode:0xcc0(GFP_KERNEL), "
            "nodemask=(null),cpuset={r},mems_allowed=0"
        ),
        "mm/page_alloc.c",
    ),
    Message(
        (
            "{c}: page allocation stalls for 10ms, order:5, mode:0xcc0(GFP_KERNEL), "
            "nodemask=(null),cpuset={r},mems_allowed=0"
        ),
        "mm/page_alloc.c (to 4.14)",
    ),
    Message(
        (
            "{c}: vmalloc error: size 4096, failed to allocate pages, mode:0xcc0(GFP_KERNEL), "
            "nodemask=(null),cpuset={r},mems_allowed=0"
        ),
        "mm/vmalloc.c",
    ),
    Message(
        (
            "{c}: attempt to access beyond end of device\nloop0: rw=0, sector=2, nr_sectors = 2 "
            "limit=0"
        ),
        "block/blk-core.c",
        "an image that is mounted",
    ),
    Message(
        "{c}: attempt to access beyond end of device",
        "block/blk-core.c (as other readers cut it)",
        "an image that is mounted",
    ),
    Message("{c}: 123 output lines suppressed due to ratelimiting", "include/linux/ratelimit.h"),
    Message(
        "{c}: potentially unexpected fatal signal 11.",
        "kernel/signal.c",
        "kernel.print-fatal-signals",
    ),
    Message(
        "{c}/123: reached RLIMIT_SIGPENDING, dropped signal 34",
        "kernel/signal.c",
        "kernel.print-fatal-signals",
    ),
    Message(
        "{c} (123): /proc/123/oom_adj is deprecated, please use /proc/123/oom_score_adj instead.",
        "fs/proc/base.c",
    ),
    Message("{c} (123): Using mlock ulimits for SHM_HUGETLB is obsolete", "fs/hugetlbfs/inode.c"),
    Message(
        (
            "{c} (123): VmData 4096 exceed data ulimit 0. Update limits or use boot option "
            "ignore_rlimit_data."
        ),
        "mm/mmap.c (without its prefix)",
    ),
    Message(
        "{c} (123): attempted to duplicate a private mapping with mremap.  This is not supported.",
        "mm/mremap.c",
    ),
    Message(
        "{c} (123): Attempt to access syslog with CAP_SYS_ADMIN but no CAP_SYSLOG (deprecated).",
        "kernel/printk/printk.c",
    ),
    Message("{c} (123): drop_caches: 3", "fs/drop_caches.c", "root"),
    Message(
        "{c} (123) used greatest stack depth: 12345 bytes left",
        "kernel/exit.c",
        "CONFIG_DEBUG_STACK_USAGE",
    ),
    Message(
        (
            "{c} (123) uses deprecated remap_file_pages() syscall. See "
            "Documentation/mm/remap_file_pages.rst."
        ),
        "mm/mmap.c (without its prefix)",
    ),
    Message(
        (
            "{c}(123): Attempt to set a LOCK_MAND lock via flock(2). This support has been removed "
            "and the request ignored."
        ),
        "fs/locks.c",
    ),
    Message("{c} uses obsolete (PF_INET,SOCK_PACKET)", "net/socket.c"),
    Message(
        "{c} calls setitimer() with new_value NULL pointer. Misfeature support will be removed",
        "kernel/time/itimer.c",
    ),
    Message(
        (
            "{c} wrote to core_pattern when file position was not 0!\nThis will not be supported "
            "in the future."
        ),
        "kernel/sysctl.c",
        "kernel.sysctl_writes_strict",
    ),
    Message(
        "{c} using unsupported default IPA limit, upgrade your VMM",
        "arch/arm64/kvm/mmu.c",
        "/dev/kvm",
    ),
    Message("{c}: sending ioctl 5326 to a partition!", "block/scsi_ioctl.c (to 5.10)", "a disk"),
    Message("{c}: calling unsupported SCSI_IOCTL_SEND_COMMAND", "block/bsg.c", "a disk"),
    # After a few letters of the kernel's own.
    Message(
        "[{c}/123] FS: tmpfs File: {r} would truncate fibmap result", "fs/ioctl.c", "CAP_SYS_RAWIO"
    ),
    Message(
        (
            "traps: {c}[123] general protection fault ip:7f21b1c2d3e4 sp:7ffd3b1c9a40 error:0 in "
            "{r}[7f21b1a00000+800000]"
        ),
        "arch/x86/kernel/traps.c",
    ),
    Message(
        "umip: {c}[123] ip:1 sp:2: SGDT instruction cannot be used by applications.",
        "arch/x86/kernel/umip.c",
    ),
    Message(
        (
            "mmap: {c} (123) uses deprecated remap_file_pages() syscall. See "
            "Documentation/mm/remap_file_pages.rst."
        ),
        "mm/mmap.c",
    ),
    Message(
        "warning: `{c}' uses 32-bit capabilities (legacy support in use)", "kernel/capability.c"
    ),
    Message(
        "JBD2: {c} wants too many credits credits:1 rsv_credits:2 max:3", "fs/jbd2/transaction.c"
    ),
    Message("process '{r}' started with executable stack", "fs/exec.c"),
    Message("process '{c}' launched '{r}' with NULL argv: empty string added", "fs/exec.c"),
    Message("netlink: 4 bytes leftover after parsing attributes in process `{c}'.", "lib/nlattr.c"),
    Message("tmpfs: Unknown parameter '{r}'", "fs/fs_context.c", "a namespace of mounts"),
)
OF_A_NETWORK_DEVICE = (
    Message("{c}: renamed from {d}", "net/core/dev.c"),
    Message("{c}: port 1({d}) entered blocking state", "net/bridge/br_stp.c"),
    Message("{c}: entered promiscuous mode", "net/core/dev.c"),
    Message("{c}: left promiscuous mode", "net/core/dev.c"),
    Message("{c}: mtu less than minimum", "net/core/dev.c"),
    Message("{c}: Caught tx_queue_len zero misconfig", "net/sched/sch_api.c"),
    Message("device {c} entered promiscuous mode", "net/core/dev.c (to 6.4)"),
)
# A namespace has a firewall of its own; it is heard where root has set
# net.netfilter.nf_log_all_netns.
OF_A_PACKET = (
    Message(
        (
            "{p}IN= OUT=lo SRC=127.0.0.1 DST=127.0.0.1 LEN=84 TOS=0x00 PREC=0x00 TTL=64 ID=1 DF "
            "PROTO=ICMP TYPE=8 CODE=0 ID=2 SEQ=1 "
        ),
        "net/netfilter/nf_log_syslog.c",
    ),
    Message(
        (
            "{p}IN=eth0 OUT= MAC=02:00:00:00:00:01:02:00:00:00:00:02:08:00 SRC=10.0.0.1 "
            "DST=10.0.0.2 LEN=60 TOS=0x00 PREC=0x00 TTL=64 ID=1 PROTO=TCP SPT=1 DPT=2 WINDOW=3 "
            "RES=0x00 SYN URGP=0 "
        ),
        "net/netfilter/nf_log_syslog.c",
    ),
    Message(
        (
            "{p}IN= OUT=lo SRC=0000:0000:0000:0000:0000:0000:0000:0001 "
            "DST=0000:0000:0000:0000:0000:0000:0000:0001 LEN=104 TC=0 HOPLIMIT=64 FLOWLBL=0 "
            "PROTO=ICMPv6 TYPE=128 CODE=0 ID=2 SEQ=1 "
        ),
        "net/netfilter/nf_log_syslog.c",
    ),
    Message(
        (
            "{p}IN=eth0 OUT= ARP HTYPE=1 PTYPE=0x0800 OPCODE=1 MACSRC=02:00:00:00:00:01 "
            "IPSRC=10.0.0.1 MACDST=00:00:00:00:00:00 IPDST=10.0.0.2"
        ),
        "net/netfilter/nf_log_syslog.c",
    ),
    Message(
        "{p}IN=eth0 OUT=eth1 MACSRC=02:00:00:00:00:01 MACDST=02:00:00:00:00:02 MACPROTO=88cc ",
        "net/netfilter/nf_log_syslog.c",
    ),
)
# Begins with a file's name, of 255 bytes, where kernel.print-fatal-signals is set.
OF_A_FILE = (
    Message(
        "{f}: {c}: potentially unexpected fatal signal 11.",
        "kernel/signal.c (6.13 and later)",
        "kernel.print-fatal-signals",
    ),
)
