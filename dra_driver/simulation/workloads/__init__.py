"""Workloads of a simulated cluster: what their controllers make of Deployments, Jobs, JobSets and others."""

from dra_driver.simulation.workloads.controller import SimulatedWorkloadController

__all__ = ["SimulatedWorkloadController"]
