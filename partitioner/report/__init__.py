"""What a run showed: values and their printed form."""

from partitioner.report.kernels import Kernels
from partitioner.report.outputs import Outputs
from partitioner.report.refinement import Refinement
from partitioner.report.run_report import Baseline, Measured, Report

__all__ = ["Baseline", "Kernels", "Measured", "Outputs", "Refinement", "Report"]
