"""Networks of loopback addresses for workers of tests, whose ports are always the same."""

import itertools
import socket

_NUMBERS = range(2, 251)


class LoopbackNetworks:
    """Networks `127.a.b`, each given once on this machine while its holder lives.

    A process holds the networks of one `a` by an abstract socket of that name, which the kernel
    frees when the process ends, however it ends (unix(7)). Random numbers would meet: the workers
    of several processes of tests listen at once, and hypothesis seeds `random` alike in each.
    """

    def __init__(self, name: str = "rollcall-tests") -> None:
        self._name = name
        self._held: list[socket.socket] = []
        self._networks = itertools.chain.from_iterable(map(self._networks_of, _NUMBERS))

    def new(self) -> str:
        """`127.a.b`, without the last number; RuntimeError when all are held."""
        network = next(self._networks, None)
        if network is None:
            raise RuntimeError("processes of tests hold all networks of 127/8")
        return network

    def close(self) -> None:
        """Leave the networks to other processes."""
        for holder in self._held:
            holder.close()

    def _networks_of(self, second: int) -> list[str]:
        holder = socket.socket(socket.AF_UNIX)
        try:
            holder.bind(f"\0{self._name}-127.{second}")
        except OSError:  # another process's
            holder.close()
            return []
        self._held.append(holder)
        return [f"127.{second}.{third}" for third in range(251)]


_OF_THIS_PROCESS = LoopbackNetworks()
own_network = _OF_THIS_PROCESS.new
