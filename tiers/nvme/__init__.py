"""The NVMe tier. docs/FORMAT.md describes what it leaves on the disk."""

from mooncask.tiers.nvme.check import Problem
from mooncask.tiers.nvme.config import NvmeConfig
from mooncask.tiers.nvme.file_layer import FileLayer
from mooncask.tiers.nvme.rebuild import RebuildReport
from mooncask.tiers.nvme.recovered import RecoveredBlock
from mooncask.tiers.nvme.tier import NvmeTier

__all__ = ["FileLayer", "NvmeConfig", "NvmeTier", "Problem", "RebuildReport", "RecoveredBlock"]
