"""The memory that operations allocate."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Storages(TorchDispatchMode):
    """Bytes of the storages that operations return, by address, except those of ``known`` tensors."""

    def __init__(self, known=()):
        super().__init__()
        self.known, self.nbytes = {tensor.untyped_storage().data_ptr() for tensor in known}, {}

    @property
    def largest(self):
        return max(self.nbytes.values(), default=0)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in self.known:
                address, size = tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes()
                self.nbytes[address] = max(size, self.nbytes.get(address, 0))
        return result
