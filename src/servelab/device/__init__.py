"""What this machine can do: device, number format, measured ceilings, and what `servelab doctor` reports.

Nothing here imports torch before a function needs it.
"""

from servelab.device.accelerator import best_device, best_dtype, has_fast_bfloat16
from servelab.device.ceiling import measured_bandwidth, measured_matmul_flops
from servelab.device.clock import Clock
from servelab.device.folder import cache_folder
from servelab.device.machine import machine_name, processor_name, usable_cores

__all__ = [
    "Clock",
    "best_device",
    "best_dtype",
    "cache_folder",
    "has_fast_bfloat16",
    "machine_name",
    "measured_bandwidth",
    "measured_matmul_flops",
    "processor_name",
    "usable_cores",
]
