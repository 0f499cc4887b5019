"""The content of ConfigMaps and Secrets; that of whole volumes is tested with them."""

import base64

from rollcall_local.kubelet.volume_content import decoded


def test_content_is_decoded_by_its_kind() -> None:
    text = base64.b64encode(b"\xff").decode()
    secret = {"kind": "Secret", "data": {"a": text}, "stringData": {"b": "plain"}}
    assert decoded(secret) == {"a": b"\xff", "b": b"plain"}
    config_map = {"kind": "ConfigMap", "data": {"a": "plain"}, "binaryData": {"b": text}}
    assert decoded(config_map) == {"a": b"plain", "b": b"\xff"}
    assert decoded({"kind": "ConfigMap"}) == {}
