"""What is read once a second from an API server: a kubectl for each reading would take a fifth of
the machine.
"""

import http
from typing import Any

import urllib3
from kubernetes import client, config

from hack.cluster.errors import KubectlError


class ApiReader:
    """Reads from the API server of a kubeconfig, over a connection that it keeps."""

    def __init__(self, kubeconfig: str) -> None:
        self._kubeconfig = kubeconfig
        self._client: Any = None

    def get(self, path: str, *, seconds: float) -> str:
        """The body of a GET. Raises KubectlError: no answer in time, or another than 200."""
        if self._client is None:
            settings: Any = client.Configuration()
            settings.retries = False  # the next reading comes within a second
            read: Any = config.load_kube_config
            read(self._kubeconfig, client_configuration=settings)
            self._client = client.ApiClient(settings)
        method, url, headers, *_ = self._client.param_serialize(
            "GET", path, auth_settings=["BearerToken"]
        )
        try:
            answer = self._client.call_api(method, url, headers, _request_timeout=seconds)
            body = answer.read().decode()
        except (client.ApiException, urllib3.exceptions.HTTPError) as error:
            raise KubectlError(f"GET {path}: {error}") from error
        if answer.status != http.HTTPStatus.OK:
            raise KubectlError(f"GET {path}: {answer.status} {body}")
        return str(body)
