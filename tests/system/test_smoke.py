import pytest

from tests.harness import Node


@pytest.mark.smoke
def test_smoke(node: Node) -> None:
    node.write("NVRM: Xid (PCI:0000:65:00): 79, pid=1, name=x, GPU has fallen off the bus.")
    assert node.wait(lambda status: status["rebootRequired"])["status"] == "unhealthy"
