"""Proofs that a node works as this driver needs it, for `dractl doctor --node --prove`.

`smi_text` reads what nvidia-smi prints, and `compare` compares that with NVML's answers; both are pure. `node` puts the
adapters together, `harmless` tries what leaves an idle node as it is, and `changes` what changes it for a moment.
"""
