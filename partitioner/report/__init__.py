"""What a run showed: values and their printed form."""

from partitioner.report.run_report import Baseline, Measured, Outputs, Report

__all__ = ["Baseline", "Measured", "Outputs", "Report"]
