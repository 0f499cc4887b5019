"""Whether another pod is the coordinator by now: asked of DNS, not believed of a member.

The name of trainer rank 0 leads to the pod that Kubernetes has under it. A coordinator that was
replaced, on a node that the cluster has lost for instance, finds another pod's address there.
"""

import asyncio
import logging
import socket
from ipaddress import ip_address

log = logging.getLogger(__name__)

LOOKUP_SECONDS = 5.0


async def name_leads_elsewhere(name: str, address: str) -> bool:
    """Whether `name` has addresses, and `address` (this pod's) is none of them.

    False if the name cannot be resolved within LOOKUP_SECONDS.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(LOOKUP_SECONDS):
            found = await loop.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError) as error:
        log.warning("cannot resolve the coordinator's name %s: %s", name, error)
        return False
    addresses = {ip_address(entry[4][0]) for entry in found}
    return bool(addresses) and ip_address(address) not in addresses
