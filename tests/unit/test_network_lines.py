"""Lines of network drivers, in the words of their sources (Linux 6.1 and 6.12, amzn-drivers)."""

from __future__ import annotations

from tests.unit.builders import recogniser

# By the entry that claims them; "" for what is no fault of the adapter
LINES = {
    "": (
        "bnxt_en 0000:3b:00.0 p1p1: Solicited firmware reset event, data1: 0x201, data2: 0xda27, min wait 1300 ms, max wait 4200 ms",
        "ice 0000:b1:00.0: control queues init failed -110",
        "mlx5_core 0000:3b:00.0: wait_fw_init:201:(pid 98): Waiting for FW initialization, timeout abort in 97s (0xffffffff)",
        "gve 0000:00:03.0: Performing reset",
        "mana 7870:00:00.0: Failed to send mana message: -110, 0x0",
    ),
    "efa/ena_stalled": (
        "ena 0000:00:05.0 eth0: TX q 5 is paused for too long (threshold 5000000). Time since last napi 6596000 usec. napi scheduled: 1",
        "ena 0000:00:05.0 eth0: The number of lost tx completions is above the threshold (1019 > 128).",
        "ena 0000:00:05.0 eth0: Keep alive watchdog timeout, 6000 msecs since last keep alive.",
        "ena 0000:00:05.0 eth0: Device isn't ready, can't reset device",
    ),
    "ib/command_failed": (
        "mlx5_core 0000:3b:00.0: wait_func:1186:(pid 98): QUERY_VPORT(0x750) timeout. Will cause a leak of a command resource",
    ),
    "ib/device_fault": (
        "mlx5_core 0000:3b:00.0: poll_health:785:(pid 0): Fatal error 3 detected",
        "mlx5_core 0000:3b:00.0: print_health_info:431:(pid 0): Health issue observed, firmware internal error, severity(3) ERROR:",
        "mlx5_core 0000:3b:00.0: mlx5_health_try_recover:338:(pid 98): health recovery flow aborted, PCI reads still not working",
        "mlx5_core 0000:3b:00.0: mlx5_fw_fatal_reporter_err_work:657:(pid 98): Driver is in error state. Unloading",
        "mlx5_core 0000:3b:00.0: NIC IFC still 7 after 2000ms.",
    ),
    "ib/init_failed": (
        "mlx5_core 0000:3b:00.0: wait_fw_init:201:(pid 98): Firmware over 120000 MS in pre-initializing state, aborting",
        "mlx5_core 0000:3b:00.0: mlx5_function_setup:1140:(pid 98): enable hca failed",
    ),
    "nic/command_timeout": (
        "iavf 0000:ec:01.1: Failed to communicate with PF; waiting before retry",
        "gve 0000:00:03.0: AQ commands timed out, need to reset AQ",
        "mana 7870:00:00.0: HWC: Request timed out: 30000 ms",
        "mana 7870:00:00.0: Command 0x20001 timed out: 30000 ms",
        "idpf 0000:07:00.0: Transaction timed-out (op 501, 1000ms)",
        "ionic 0000:21:00.0: DEVCMD NOP (0) timeout after 10 secs",
    ),
    "nic/firmware_reset": (
        "bnxt_en 0000:3b:00.0 p1p1: Non-fatal firmware reset event, data1: 0x201, data2: 0xda27, min wait 1300 ms, max wait 4200 ms",
        "bnxt_en 0000:3b:00.0 p1p1: Firmware non-fatal reset event received, max wait time 4200 msec",
        "bnxt_en 0000:3b:00.0 p1p1: Firmware fatal reset event, data1: 0x201, data2: 0xda27, min wait 1300 ms, max wait 4200 ms",
        "ice 0000:b1:00.0 rocep177s0: Requesting a reset",
        "iavf 0000:ec:01.1: Hardware reset detected",
        "i40e 0000:60:00.0: device will be reset",
        "gve 0000:00:03.0: Device requested reset.",
        "idpf 0000:07:00.0: HW reset detected",
        "ionic 0000:21:00.0: FW stopped 0x00",
        "ionic 0000:21:00.0: FW heartbeat stalled at 120",
        "ionic 0000:21:00.0: FW Down: Stopping LIFs",
    ),
    "nic/init_failed": (
        "bnxt_en 0000:3b:00.0 (unnamed net_device) (uninitialized): Firmware init phase 1 failed",
        "bnxt_en 0000:12:00.0 bnxt_re0: Failed to initialize RCFW: 0xffffff92",
        "ice 0000:b1:00.0: ice_init_hw failed: -105",
        "ice 0000:b1:00.0: The DDP package file was not found or could not be read. Entering Safe Mode",
        "ice 0000:b1:00.0: HW runtime init FAIL status = -110 last cmpl = 4",
        "iavf 0000:ec:01.1: Unable to get VF config due to PF error condition, not retrying",
        "iavf 0000:ec:01.1: Failed to init Admin Queue (-53)",
        "igb 0000:01:00.0: The NVM Checksum Is Not Valid",
        "ixgbe 0000:03:00.0: HW Init failed: -8",
        "ixgbe 0000:03:00.0: failed to load because an unsupported SFP+ or QSFP module type was detected.",
        "i40e 0000:60:00.0: The driver for the device stopped because the device firmware failed to init. Try updating your NVM image.",
        "i40e 0000:60:00.0: eeprom check failed (-2), Tx/Rx traffic disabled",
        "i40e 0000:60:00.0: PF reset failed: -15",
        "gve 0000:00:03.0: Could not get device information: err=-5",
        "mana 7870:00:00.0: Failed to establish HWC: -110",
        "mana 7870:00:00.0: gdma probe failed: err = -110",
        "idpf 0000:07:00.0: Failed to establish mailbox communications with hardware",
        "ena 0000:00:05.0: ENA device init failed",
        "ionic 0000:21:00.0: Cannot identify device: -110, aborting",
        "igb: probe of 0000:01:00.0 failed with error -5",
    ),
    "nic/lost": (
        "bnxt_en 0000:3b:00.0 p1p1: Firmware reset aborted, PCI config space invalid",
        "igb 0000:01:00.0 eth0: PCIe link lost",
        "igc 0000:0a:00.0 eno1: PCIe link lost, device now detached",
        "ixgbe 0000:03:00.0: Adapter removed",
    ),
    "nic/open_failed": ("bnxt_en 0000:3b:00.0 p1p1: nic open fail (rc: ffffffed)",),
    "nic/rdma_critical": (
        "bnxt_en 0000:12:00.0: QPLIB: cmdq[0xe]=0x3 timedout (20000)msec",
        "ice 0000:b1:00.0 rocep177s0: HMC Error",
        "ice 0000:b1:00.0 rocep177s0: PE Push Error",
        "ice 0000:b1:00.0 rocep177s0: ICE OICR event notification: oicr = 0x06000803",
    ),
    "nic/reset_failed": (
        "bnxt_en 0000:3b:00.0 p1p1: Firmware reset aborted, rc = -19",
        "bnxt_en 0000:3b:00.0 p1p1: Firmware reset aborted, subsequent func_qcfg cmd failed, rc = -110, 5000 msecs since reset timestamp",
        "bnxt_en 0000:3b:00.0 p1p1: Firmware reset aborted, first func_qcfg cmd failed, rc = -110",
        "bnxt_en 0000:3b:00.0 p1p1: Firmware reset aborted, bnxt_get_registered_vfs() returns -110",
        "bnxt_en 0000:3b:00.0 p1p1: bnxt_open() failed during FW reset",
        "bnxt_en 0000:3b:00.0: Cannot re-enable PCI device after reset.",
        "bnxt_en 0000:3b:00.0 p1p1: A previous firmware reset has not completed, aborting",
        "bnxt_en 0000:3b:00.0 p1p1: RESET_DONE not set during FW reset.",
        "ice 0000:b1:00.0: reset 4 failed",
        "ice 0000:b1:00.0: Error during VSI rebuild: -5. Unload and reload the driver.",
        "ice 0000:b1:00.0 ens801f0np0: driver needs to be unloaded and reloaded",
        "ice 0000:b1:00.0 ens801f0np0: tx_timeout recovery unsuccessful, device is in unrecoverable state.",
        "ice 0000:b1:00.0: ice_pci_err_detected: unrecoverable device error 4",
        "iavf 0000:ec:01.1: Reset never finished (4)",
        "iavf 0000:ec:01.1: Reset task did not complete, VF disabled",
        "iavf 0000:ec:01.1: failed to allocate resources during reinit",
        "igb 0000:01:00.0: Hardware Error",
        "e1000e 0000:00:1f.6 eno1: Hardware Error",
        "i40e 0000:60:00.0: i40e_reset_and_rebuild: i40e_reset() FAILED",
        "i40e 0000:60:00.0: PF reset failed, -15",
        "i40e 0000:60:00.0 eth1: tx_timeout recovery unsuccessful, device is in non-recoverable state.",
        "i40e 0000:60:00.0: Rebuild AdminQ failed, err -EIO aq_err OK",
        "gve 0000:00:03.0 eth0: Adjust queues failed! !!! DISABLING ALL QUEUES !!!",
        "mana 7870:00:00.0: MANA reset cycle failed err -110",
        "mana 7870:00:00.0: MANA service: resume failed, rescanning",
        "idpf 0000:07:00.0: Device reset timeout!",
        "idpf 0000:07:00.0: The driver was unable to contact the device's firmware. Check that the FW is running. Driver state= 0x2",
        "ena 0000:00:05.0: Reset attempt failed. Can not reset the device",
        "ena 0000:00:05.0: Restore attempt failed.",
        "ena 0000:00:05.0 eth0: FW isn't responsive, skipping reset routine",
        "ionic 0000:21:00.0: FW Up: LIFs restart failed - err -5",
    ),
    "nic/stopped": (
        "ixgbe 0000:03:00.0 eth0: Network adapter has been stopped because it has over heated. Restart the computer. If the problem persists, power off the system and replace the adapter",
        "ixgbe 0000:03:00.0 eth0: Fan has stopped, replace the adapter",
    ),
    "nic/tx_timeout": (
        "ice 0000:b1:00.0 ens801f0np0: tx_timeout recovery level 1, txqueue 14",
        "igb 0000:01:00.0: Detected Tx Unit Hang",
        "igc 0000:0a:00.0 eno1: Detected Tx Unit Hang",
        "ixgbe 0000:03:00.0 eth0: Detected Tx Unit Hang ",
        "ixgbe 0000:03:00.0 eth0: tx hang 12 detected on queue 3, resetting adapter",
        "ixgbe 0000:03:00.0 eth0: initiating reset due to tx timeout",
        "e1000e 0000:00:1f.6 eno1: Detected Hardware Unit Hang:",
        "e1000e 0000:00:1f.6 eno1: Reset adapter unexpectedly",
        "gve 0000:00:03.0 eth0: Timeout on tx queue, 3",
        "idpf 0000:07:00.0 eth0: Detected Tx timeout: Count 1, Queue 3",
        "ionic 0000:21:00.0 eth0: Tx Timeout triggered - txq 3",
        "NETDEV WATCHDOG: eth0 (igb): transmit queue 0 timed out",
        "mana 7870:00:00.0 eth0: NETDEV WATCHDOG: CPU: 3: transmit queue 0 timed out 5000 ms",
    ),
}


def test_what_the_drivers_say_is_read_by_what_it_means() -> None:
    known = recogniser()
    wrong = []
    for code, lines in LINES.items():
        for line in lines:
            parsed = known.parse_record(line.encode())
            if (parsed.code if parsed is not None else "") != code:
                wrong.append((code, line, parsed))
    assert wrong == []
