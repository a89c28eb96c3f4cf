"""From the device plugin and its relatives to Dynamic Resource Allocation. Pure: texts in, texts and findings out.

`dra_driver.cli.migrate` reads and writes files and asks the cluster.
"""
