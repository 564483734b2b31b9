"""What perftest's ib_write_bw and ib_write_lat print, by the formats of its sources (4.5 to 26.x,
perftest_parameters.h: RESULT_FMT_G, REPORT_FMT, RESULT_FMT_LAT, REPORT_FMT_LAT). The figures are
ours.
"""

from __future__ import annotations

LINE = "-" * 87
NO_DEVICE = """\
 Did not detect devices 
 If device exists, check if driver is up
 Unable to find the Infiniband/RoCE device
"""  # noqa: W291 - as Debian's 4.5+0.17 prints it
FAILED = """\
 Completion with error at client
 Failed status-transport retry counter exceeded (12): wr_id 0 syndrom 0x81
 scnt=128, ccnt=0
"""


def print_bandwidth(gigabits: float, device: str = "mlx5_0") -> str:
    row = f" {1048576:<7}    {5000:<10}       {gigabits:<7.2f}            {gigabits:<7.2f}"
    return f"""\
{LINE}
                    RDMA_Write BW Test
 Dual-port       : OFF\t\tDevice         : {device}
{LINE}
 local address: LID 0x09 QPN 0x00a7 PSN 0x5a5cd7 RKey 0x1fff00 VAddr 0x007f3c
 remote address: LID 0x09 QPN 0x00a8 PSN 0x78a3c7 RKey 0x1fff01 VAddr 0x007f3d
{LINE}
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
{row}\t\t     {0.046:<7.6f}
{LINE}
"""


def print_latency(microseconds: float, device: str = "mlx5_0") -> str:
    us = microseconds
    row = f" {8:<7} {10000}          {us - 0.1:<7.2f}        {us + 9:<7.2f}      {us:<7.2f}  "
    row += f"\t       {us + 0.02:<7.2f}     \t{0.05:<7.2f}\t\t{us + 0.3:<7.2f} \t\t{us + 5:<7.2f}"
    heading = "#bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]"
    return f"""\
{LINE}
                    RDMA_Write Latency Test
 Dual-port       : OFF\t\tDevice         : {device}
{LINE}
 {heading}    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]\x20
{row}
{LINE}
"""
