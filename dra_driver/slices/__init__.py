"""From inventories and policy to the ResourceSlices that should be, and to the writes that make them so."""
