"""Address of the API server and credentials for it: those of the pod, or of a kubeconfig."""

import logging
import os
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from rollcall_operator.kube.http_client import session_options
from rollcall_operator.kube.lazy_package import run_init_lazily

# Half of a second of imports that are not needed: the blocking client, pools of threads, informers.
run_init_lazily("kubernetes")
run_init_lazily("kubernetes.aio")

from kubernetes.aio.client.api_client import ApiClient  # noqa: E402
from kubernetes.aio.client.configuration import Configuration  # noqa: E402
from kubernetes.aio.config import (  # noqa: E402
    ConfigException,
    load_incluster_config,
    load_kube_config,
)

log = logging.getLogger(__name__)

_POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class ConfigurationError(Exception):
    """There is no usable configuration; the message names the one that was tried."""


@dataclass(frozen=True, slots=True)
class Connection:
    """An opened configuration. The owner closes it; `refresh` reads credentials again."""

    api: Any  # kubernetes.aio's ApiClient, which is not typed
    in_cluster: bool
    namespace: str
    refresh: Callable[[], Awaitable[None]]

    @property
    def server(self) -> str:
        """Base URL without a trailing slash."""
        return str(self.api.configuration.host).rstrip("/")

    @property
    def ssl_context(self) -> ssl.SSLContext:
        """The context with the cluster's CA and, where configured, the client's certificate."""
        context: ssl.SSLContext = self.api.rest_client.ssl_context
        return context

    @property
    def session(self) -> aiohttp.ClientSession:
        """The client's own connection pool; made at first use, inside a running loop."""
        rest = self.api.rest_client
        if rest.pool_manager is None:
            rest.pool_manager = rest._create_pool_manager()  # noqa: SLF001 - a hook for subclasses
        session: aiohttp.ClientSession = rest.pool_manager
        return session

    @property
    def request_options(self) -> dict[str, Any]:
        """What each request of `session` needs: the proxy, and the name in the certificate."""
        rest = self.api.rest_client
        options = {
            "server_hostname": self.api.configuration.tls_server_name,
            "proxy": rest.proxy,
            "proxy_headers": rest.proxy_headers,
        }
        return {name: value for name, value in options.items() if value}

    @property
    def proxy(self) -> str | None:
        """The proxy on the way to the API server: the kubeconfig's, else the environment's."""
        found: str | None = self.api.configuration.proxy
        return found

    async def auth_headers(self) -> dict[str, str]:
        """Headers with the current bearer token; none with client certificates."""
        bearer = (await self.api.configuration.auth_settings()).get("BearerToken")
        return {"Authorization": str(bearer["value"])} if bearer and bearer["value"] else {}

    async def close(self) -> None:
        """Close the connection pool."""
        await self.api.close()


def proxy_of_environment(server: str) -> str | None:
    """What HTTPS_PROXY (for an http `server` HTTP_PROXY) and NO_PROXY say about the way there."""
    address = urlsplit(server)
    if address.hostname is None or proxy_bypass(address.hostname):
        return None
    return getproxies().get(address.scheme)


def _pod_namespace() -> str:
    return _POD_NAMESPACE.read_text().strip()


async def connect(*, kubeconfig: str | None = None, context: str | None = None) -> Connection:
    """Open the in-cluster configuration, else `kubeconfig` (default: KUBECONFIG, ~/.kube/config).

    An explicit `kubeconfig` wins over the pod's own. Raises ConfigurationError.
    """
    if kubeconfig is not None and not Path(kubeconfig).exists():  # noqa: ASYNC240 - at the start
        raise ConfigurationError(f"kubeconfig file {kubeconfig} does not exist")
    settings: Any = Configuration()
    in_cluster = kubeconfig is None and bool(os.environ.get("KUBERNETES_SERVICE_HOST"))

    async def load() -> str:
        if in_cluster:
            into: Any = load_incluster_config
            into(client_configuration=settings)
            return _pod_namespace()
        read: Any = load_kube_config
        loaded = await read(
            config_file=kubeconfig,
            context=context,
            client_configuration=settings,
            persist_config=False,
        )
        return (loaded.current_context.get("context") or {}).get("namespace") or "default"

    async def refresh() -> None:
        await load()

    try:
        namespace = await load()
        settings.connection_pool_maxsize = 100
        settings.proxy = settings.proxy or proxy_of_environment(settings.host)
        # Otherwise aiohttp looks for a proxy and into ~/.netrc in a thread for each request.
        settings.client_session_kwargs = session_options()
        api = ApiClient(settings)
    except (ConfigException, OSError, ValueError, KeyError, TypeError) as error:
        where = "the pod's service account" if in_cluster else (kubeconfig or "KUBECONFIG")
        raise ConfigurationError(f"cannot use {where}: {error}") from error
    log.info("API server %s (%s)", settings.host, "in cluster" if in_cluster else "kubeconfig")
    return Connection(api=api, in_cluster=in_cluster, namespace=namespace, refresh=refresh)
