"""libcudart by ctypes: what moves buckets between host and device memory.

Signatures: cuda_runtime_api.h of CUDA 13.0; they are the same since CUDA 11.
"""

import ctypes
from collections.abc import Iterator

from rollcall_runtime.sync.bindings.c_library import CLibrary, Functions, in_wheels, load

_NOT_READY = 600
_ALREADY_REGISTERED = 712
_NON_BLOCKING = 1
_TO_DEVICE, _TO_HOST, _WITHIN = 1, 2, 3
_POINTER, _SIZE, _INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_OUT = ctypes.POINTER(ctypes.c_void_p)

_FUNCTIONS: Functions = {
    "cudaGetDeviceCount": [ctypes.POINTER(ctypes.c_int)],
    "cudaSetDevice": [_INT],
    "cudaMalloc": [_OUT, _SIZE],
    "cudaFree": [_POINTER],
    "cudaStreamCreateWithFlags": [_OUT, ctypes.c_uint],
    "cudaStreamDestroy": [_POINTER],
    "cudaStreamQuery": [_POINTER],
    "cudaStreamSynchronize": [_POINTER],
    "cudaMemsetAsync": [_POINTER, _INT, _SIZE, _POINTER],
    "cudaMemcpyAsync": [_POINTER, _POINTER, _SIZE, _INT, _POINTER],
    "cudaHostRegister": [_POINTER, _SIZE, ctypes.c_uint],
    "cudaHostUnregister": [_POINTER],
}


def _candidates(path: str) -> Iterator[str]:
    if path:
        yield path
        return
    for major in (13, 12):  # first by name: what torch has loaded is used, not a second copy
        yield f"libcudart.so.{major}"
        yield from in_wheels(f"*/lib/libcudart.so.{major}")
    yield "libcudart.so"


class CudaLibrary:
    """The runtime library at `path`, or where torch or NVIDIA's wheels have it (ImportError).

    Methods raise LibraryError. Pointers and streams are addresses, as integers.
    """

    def __init__(self, path: str = "") -> None:
        self._library = CLibrary(
            load("libcudart", _candidates(path)),
            functions=_FUNCTIONS,
            optional={},
            describe="cudaGetErrorString",
        )

    def devices(self) -> int:
        """How many devices this process sees."""
        count = ctypes.c_int()
        self._library.call("cudaGetDeviceCount", ctypes.byref(count))
        return count.value

    def use(self, device: int) -> None:
        """Make it the calling thread's device."""
        self._library.call("cudaSetDevice", device)

    def allocate(self, nbytes: int) -> int:
        """The address of `nbytes` of device memory. LibraryError if there is no room."""
        pointer = ctypes.c_void_p()
        self._library.call("cudaMalloc", ctypes.byref(pointer), nbytes)
        return pointer.value or 0

    def free(self, pointer: int) -> None:
        """Free device memory; waits for the device."""
        self._library.call("cudaFree", pointer)

    def zero(self, pointer: int, nbytes: int, stream: int) -> None:
        """Fill device memory with zeros; done when the stream is idle."""
        self._library.call("cudaMemsetAsync", pointer, 0, nbytes, stream)

    def stream(self) -> int:
        """A stream that does not wait for the default stream."""
        stream = ctypes.c_void_p()
        self._library.call("cudaStreamCreateWithFlags", ctypes.byref(stream), _NON_BLOCKING)
        return stream.value or 0

    def destroy_stream(self, stream: int) -> None:
        """Give the stream's handle back; work that is in it still ends."""
        self._library.call("cudaStreamDestroy", stream)

    def idle(self, stream: int) -> bool:
        """Whether all work of the stream has ended."""
        code = self._library.call("cudaStreamQuery", stream, accept=(0, _NOT_READY))
        return code == 0

    def wait(self, stream: int) -> None:
        """Block until all work of the stream has ended."""
        self._library.call("cudaStreamSynchronize", stream)

    def to_device(self, pointer: int, host: int, nbytes: int, stream: int) -> None:
        """Copy from host memory; done when the stream is idle."""
        self._library.call("cudaMemcpyAsync", pointer, host, nbytes, _TO_DEVICE, stream)

    def to_host(self, host: int, pointer: int, nbytes: int, stream: int) -> None:
        """Copy to host memory; done when the stream is idle."""
        self._library.call("cudaMemcpyAsync", host, pointer, nbytes, _TO_HOST, stream)

    def within(self, to: int, pointer: int, nbytes: int, stream: int) -> None:
        """Copy from device memory to device memory; done when the stream is idle."""
        self._library.call("cudaMemcpyAsync", to, pointer, nbytes, _WITHIN, stream)

    def register(self, host: int, nbytes: int) -> None:
        """Page-lock host memory, for copies at full speed; harmless if it is locked already."""
        self._library.call("cudaHostRegister", host, nbytes, 0, accept=(0, _ALREADY_REGISTERED))

    def unregister(self, host: int) -> None:
        """End the page lock of host memory."""
        self._library.call("cudaHostUnregister", host)
