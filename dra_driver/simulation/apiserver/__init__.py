"""A Kubernetes API server to develop, test and demonstrate against: one process, plain HTTP, nothing to install.

It answers kubectl, and tests/contracts/ hold it to the behavior of a real kube-apiserver.
"""
