"""The node's part of `dractl doctor` and `dractl bundle`; found through the entry point group `gpu_dra.doctor`.

`looking` sees what there is on the machine, with the plugin's own adapters; `seen` is that as values, and `checks`
judges; these two are pure. `node_proofs` tries what containers need, and `smi` compares what nvidia-smi prints with
NVML's answers; `smi` is pure. `part` puts them together.
"""
