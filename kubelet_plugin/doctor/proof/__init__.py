"""Proofs that a node works as this driver needs it, for `dractl doctor --node --prove`.

`smi` compares what nvidia-smi prints with NVML's answers, and is pure. `proof_node` connects the adapters, `harmless`
tries what leaves an idle node as it is, `changing_proofs` what changes it briefly, and `kubelet_plugin.doctor.part`
runs them all.
"""
