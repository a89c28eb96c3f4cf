"""Workloads of a simulated cluster: what their controllers make of Deployments, Jobs, JobSets and others."""
