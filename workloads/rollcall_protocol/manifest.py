"""What a version consists of: tensors laid out in one flat buffer, cut into buckets."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor's place in the flat buffer. `dtype` is torch's name, e.g. "bfloat16"."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """Layout and checksums of one version. `checksums` are CRC-32 values, one a bucket.

    `total_bytes` is the flat buffer's length, padding included; bucket i covers bytes
    [i * bucket_bytes, min((i + 1) * bucket_bytes, total_bytes)).
    """

    tensors: tuple[TensorSpec, ...]
    total_bytes: int
    bucket_bytes: int
    checksums: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.bucket_bytes <= 0:
            raise ValueError("bucket_bytes must be positive")
        buckets = -(-self.total_bytes // self.bucket_bytes)
        if len(self.checksums) != buckets:
            raise ValueError(f"{len(self.checksums)} checksums for {buckets} buckets")
        for tensor in self.tensors:
            if tensor.offset < 0 or tensor.offset + tensor.nbytes > self.total_bytes:
                raise ValueError(f"tensor {tensor.name} lies outside the buffer")

    def bucket(self, index: int) -> tuple[int, int]:
        """First byte and end of bucket `index`."""
        start = index * self.bucket_bytes
        return start, min(start + self.bucket_bytes, self.total_bytes)
