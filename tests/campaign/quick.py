"""Imported by the process that forks plugins: what they wait for in seconds and minutes takes less, so that a sequence
sees the end of it. The order of the waits stays: a taint is there before a node gives up or switches a mode."""

from kubelet_plugin.claims.mode_changes import ModeChanges, ModePatience
from kubelet_plugin.reporting import binding
from kubelet_plugin.reporting.device_status import DeviceStatusWriter

binding._DAEMON_PATIENCE_S = 4.0
binding._GIVEN_UP_S = 0.5
for init, quick in (
    (binding.NodeBinding.__init__, {"patience_s": 2.0, "again_s": 0.3}),
    (DeviceStatusWriter.__init__, {"together_s": 0.2, "look_every_s": 1.0, "pause_s": 5.0}),
):
    assert init.__kwdefaults__ is not None and init.__kwdefaults__.keys() >= quick.keys()
    init.__kwdefaults__.update(quick)
assert isinstance((ModeChanges.__init__.__defaults__ or ())[-1], ModePatience)
patience = ModePatience(settle_s=0.5, tick_s=0.1, first_retry_s=0.2, longest_retry_s=1.0)
ModeChanges.__init__.__defaults__ = (patience,)
