"""What is made for a domain, as far as the API server minds how it is written."""

import pytest
from support.domain_values import domain

from dra_driver.api.meta import JsonObject
from dra_driver.domains.objects import DaemonSettings, daemon_template, workload_template


@pytest.mark.parametrize(
    "template", [workload_template(domain()), daemon_template(domain(), DaemonSettings("gpu", "image"))]
)
def test_parameters_have_their_keys_sorted_lest_no_status_of_their_claims_can_be_applied(template: JsonObject) -> None:
    (config,) = template["spec"]["spec"]["devices"]["config"]
    keys = list(config["opaque"]["parameters"])
    assert keys == sorted(keys)
    assert {"apiVersion", "domainID", "kind"} <= set(keys)
