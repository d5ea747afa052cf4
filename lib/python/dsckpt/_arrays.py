"""The form of elements for a caller: tensors of torch or arrays of NumPy, their type and their device."""
from ._errors import UnsupportedError, UsageError
from ._tool import dtype_name

PIECE = 32 << 20  # bytes per read if elements are converted, or go to another device

NUMPY = {
    "float64": "f8", "float32": "f4", "float16": "f2", "int64": "i8", "int32": "i4", "int16": "i2", "int8": "i1",
    "uint64": "u8", "uint32": "u4", "uint16": "u2", "uint8": "u1", "bool": "?", "complex64": "c8",
    "complex128": "c16",
}  # fmt: skip
SIZES = {**{name: int(code[1:] or 1) for name, code in NUMPY.items() if code != "?"}, "bool": 1, "bfloat16": 2,
         "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
         "complex32": 4, "float4_e2m1fn_x2": 1, "bits8": 1, "bits16": 2, "bits1x8": 1, "bits2x4": 1,
         "bits4x2": 1}  # fmt: skip
_SHORT = {"fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_FLOATING = {name for name in SIZES if name.startswith(("float", "bfloat")) and not name.startswith("float4")}


class Form:
    """The form of elements for a caller: tensors of torch or arrays of NumPy, their type and their device.

    framework: "pt" or "np". dtype: torch's name of a floating type; None: the stored type. device: None: the CPU.
    """

    def __init__(self, framework, dtype, device):
        self._framework, self._dtype, self._device = framework, dtype, device

    @classmethod
    def of(cls, framework, dtype, device):
        """Makes a form from the caller's arguments. Raises UsageError."""
        name = None if dtype is None else dtype_name(dtype) or _SHORT.get(dtype, dtype)
        if name is not None and name not in _FLOATING:
            raise UsageError(f"dtype is a floating type, such as torch.bfloat16 or 'bf16', not {dtype!r}")
        device = None if str(device) in ("None", "cpu") else device
        if framework == "np" and device is not None:
            raise UsageError(f"arrays of NumPy are on the CPU, not on {device!r}", hint="framework='pt' has devices")
        return cls(framework, name, device)

    def changed(self, dtype, device):
        """This form, with the arguments that are not None."""
        if dtype is None and device is None:
            return self
        return self.of(self._framework, self._dtype if dtype is None else dtype,
                       self._device if device is None else device)

    def of_torch(self):
        return Form("pt", self._dtype, self._device)

    def of_numpy(self):
        return Form("np", self._dtype, None)

    def keeps(self, stored):
        """Returns whether elements of type `stored` are handed out unchanged."""
        return self._device is None and self._type(stored) == stored

    def make(self, data, dtype, shape, strides):
        """An array of the stored type."""
        return (_numpy if self._framework == "np" else _torch)(data, dtype, shape, strides)

    def of_array(self, array, stored):
        """Converts `array`, a result of make(), to this form."""
        if self.keeps(stored):
            return array
        if self._framework == "np":
            return array.astype(_numpy_type(self._type(stored)))
        return array.to(device=self._device, dtype=_torch_type(self._type(stored)))

    def empty(self, stored, shape):
        """Memory for a tensor of type `stored`."""
        if self._framework == "np":
            import numpy
            return numpy.empty(shape, _numpy_type(self._type(stored)))
        import torch
        return torch.empty(shape, dtype=_torch_type(self._type(stored)), device=self._device)

    def _type(self, stored):
        return self._dtype if self._dtype is not None and stored in _FLOATING else stored


def _torch_type(dtype):
    import torch
    kind = getattr(torch, dtype, None)
    if kind is None:
        raise UnsupportedError(f"this torch has no {dtype}")
    return kind


def _torch(data, dtype, shape, strides):
    import torch
    kind = _torch_type(dtype)
    if 0 in shape:
        return torch.empty(shape, dtype=kind)
    flat = torch.frombuffer(data, dtype=kind)
    return flat.view(shape) if strides is None else flat.as_strided(shape, strides)


def _numpy_type(dtype):
    import numpy
    if dtype in NUMPY:
        return numpy.dtype(NUMPY[dtype])
    try:
        import ml_dtypes
        return numpy.dtype(getattr(ml_dtypes, dtype))
    except (ImportError, AttributeError):
        raise UnsupportedError(f"NumPy has no {dtype}", hint="torch() has; or install ml_dtypes") from None


def _numpy(data, dtype, shape, strides):
    import numpy
    kind = _numpy_type(dtype)
    if 0 in shape:
        return numpy.empty(shape, kind)
    flat = numpy.frombuffer(data, kind)
    if strides is None:
        return flat.reshape(shape)
    steps = [stride * kind.itemsize for stride in strides]
    return numpy.lib.stride_tricks.as_strided(flat, shape, steps)


def batches(tensors):
    """Lists of consecutive tensors; each list is read at once."""
    batch, size = [], 0
    for tensor in tensors:
        if batch and size + tensor.nbytes > PIECE:
            yield batch
            batch, size = [], 0
        batch.append(tensor)
        size += tensor.nbytes
    if batch:
        yield batch


def bytes_text(size):
    """
    >>> bytes_text(216), bytes_text(13_476_000_000)
    ('216 B', '13.5 GB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            break
        size /= 1000
    else:
        unit = "TB"
    return f"{size} B" if unit == "B" else f"{size:.3g} {unit}"
