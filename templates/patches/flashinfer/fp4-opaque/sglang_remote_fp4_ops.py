"""FlashInfer's FP4 quantisers as operators that torch.compile does not look into.

`fp4_quantize`, `nvfp4_quantize` and `mxfp4_quantize` build or load a kernel module inside the call,
and Dynamo cannot trace that. Each becomes a torch operator with a fake: a trace holds one node, and
what runs is FlashInfer's own function. Outside torch.compile a call goes straight there.

So does a call that the fakes don't describe (`_LEFT_ALONE`, a tensor that isn't on a GPU): under
torch.compile it fails as it would without the patch.
"""

import enum
import functools
import importlib
import inspect

import sglang_remote_hook as hook
import torch

NAMESPACE = "sglang_remote"
#: The releases of FlashInfer with which the fakes were compared: from, up to and with.
KNOWN = ((0, 5, 3), (0, 7, 4))
#: From here on the swizzled scale keeps the columns that pad it to a multiple of four.
_KEEPS_PADDING = (0, 6, 8)
#: From here on `nvfp4_quantize` honours the linear layout; before, it swizzled all the same.
_HONOURS_LINEAR = (0, 6, 7)

#: The parameters that travel through an operator, with the types it gives them. Where a version
#: lacks one, so does its operator.
_TYPES = {
    "input": torch.Tensor,
    "a": torch.Tensor,
    "global_scale": torch.Tensor | None,
    "a_global_sf": torch.Tensor,
    "sf_vec_size": int,
    "sf_use_ue8m0": bool,
    "is_sf_swizzled_layout": bool,
    "is_sf_8x4_layout": bool,
    "is_global_scale_inversed": bool,
    "enable_pdl": bool | None,
    "backend": str,
    "sfLayout": int,
    "nvfp4_4over6": int,
    "batch_invariant": bool,
}
#: The values with which a call may be routed, of parameters that change the results' shapes or
#: write into an argument.
_LEFT_ALONE = {
    "do_shuffle": (False,),
    "per_token_activation": (False,),
    "expanded_idx_to_permuted_idx": (None,),
    "out_scale": (None,),
    "backend": ("cuda", "auto"),
}
#: FlashInfer's own number for a `nvfp4_4over6` that wasn't given; the others come from it too.
_NOT_GIVEN = -1
_LINEAR, _SWIZZLED_8X4 = "layout_linear", "layout_8x4"

_library = torch.library.Library(NAMESPACE, "FRAGMENT")
_operators = {}


def route(module, patch):
    """Route the functions that the module defines; False where it only re-exports them.

    Raises:
        RuntimeError: a FlashInfer whose shapes the fakes were never compared with.
    """
    version = hook.flashinfer_version()
    release = hook.release(version)[:3]
    if not KNOWN[0] <= release <= KNOWN[1]:
        raise RuntimeError(f"it doesn't know flashinfer {version}")
    routes = []
    for name in ("fp4_quantize", "nvfp4_quantize", "mxfp4_quantize"):
        original = getattr(module, name)
        if getattr(original, hook.MARK, None) == patch:
            return False
        routes.append((original, _Quantiser(name, original, module, release).function(patch)))
    for original, ours in routes:
        hook.rebind(original, ours)
    return True


class _Quantiser:
    """One of the three functions, as one version of FlashInfer has it."""

    def __init__(self, name, original, module, release):
        self.name = name
        self.original = original
        self.module = module
        self.release = release
        self.parameters = dict(inspect.signature(original).parameters)
        self.tensor = next(iter(self.parameters))
        self.travelling = [name for name in self.parameters if name in _TYPES]
        if "nvfp4_4over6" in self.parameters:
            self.recipes = importlib.import_module(
                "flashinfer.quantization.nvfp4_quantization_utils"
            )

    def function(self, patch):
        """What takes the public name: the operator under torch.compile, else the original."""
        operator, original = self._operator(), self.original
        names, tensor = tuple(self.parameters), self.tensor
        to_operator = self._to_operator()

        def routed(*args, **kwargs):
            if torch.compiler.is_compiling():
                # Not with `strict=`, which torch 2.9's Dynamo takes for True whatever it is.
                arguments = dict(zip(names, args))  # noqa: B905
                arguments.update(kwargs)
                if to_operator(arguments):
                    return operator(arguments.pop(tensor), **arguments)
            return original(*args, **kwargs)

        hook.carry_over(original, routed, patch)
        routed.__sglang_remote_operator__ = f"{NAMESPACE}.{self.name}"
        return routed

    def _operator(self):
        if self.name not in _operators:
            # Whether a tensor is column-major decides the result: its strides must stay.
            exact = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)
            schema = torch.library.infer_schema(self._prototype(), mutates_args=())
            _library.define(self.name + schema, tags=(torch.Tag.pt2_compliant_tag, exact))
            _library.impl(self.name, self._run, "CUDA")
            torch.library.register_fake(f"{NAMESPACE}::{self.name}", self._fake, lib=_library)
            _operators[self.name] = getattr(getattr(torch.ops, NAMESPACE), self.name).default
        return _operators[self.name]

    def _prototype(self):
        """A function with the operator's signature, for torch to infer the schema from."""

        def prototype():
            raise NotImplementedError

        prototype.__signature__ = inspect.Signature(
            [
                inspect.Parameter(
                    name,
                    inspect.Parameter.POSITIONAL_OR_KEYWORD,
                    default=self._default(name),
                    annotation=_TYPES[name],
                )
                for name in self.travelling
            ],
            return_annotation=tuple[torch.Tensor, torch.Tensor],
        )
        return prototype

    def _default(self, name):
        default = self.parameters[name].default
        if name == "nvfp4_4over6":
            return _NOT_GIVEN
        return default.value if isinstance(default, enum.Enum) else default

    def _to_operator(self):
        """What makes a call's arguments the operator's, in place; False: not to be routed.

        Dynamo traces it, so it holds nothing but constants.
        """
        travelling, tensor = tuple(self.travelling), self.tensor
        tensors = tuple(n for n in travelling if _TYPES[n] is torch.Tensor)
        recipes = getattr(self, "recipes", None)

        def to_operator(arguments):
            for name in tensors:
                if not isinstance(arguments.get(name), torch.Tensor):
                    return False
            if not arguments[tensor].is_cuda:
                return False
            for name in tuple(arguments):
                if name in _LEFT_ALONE and not _among(arguments[name], _LEFT_ALONE[name]):
                    return False
                if name not in travelling:
                    if name not in _LEFT_ALONE:
                        return False
                    arguments.pop(name)
            if "sfLayout" in arguments:
                if not isinstance(arguments["sfLayout"], enum.Enum):
                    return False
                arguments["sfLayout"] = arguments["sfLayout"].value
            if "nvfp4_4over6" in arguments:
                recipe = arguments.pop("nvfp4_4over6")
                if recipe is not recipes._UNSET:
                    resolved = recipes.resolve_nvfp4_4over6(recipe)
                    arguments["nvfp4_4over6"] = recipes.nvfp4_4over6_code(resolved)
            return True

        return to_operator

    def _bound(self, args, kwargs):
        """An operator's arguments by name, those at their defaults included."""
        arguments = {name: self._default(name) for name in self.travelling}
        arguments.update(zip(self.travelling, args, strict=False))
        arguments.update(kwargs)
        return arguments

    def _run(self, *args, **kwargs):
        """The operator on a GPU: FlashInfer's function, its own kinds of arguments given back."""
        arguments = self._bound(args, kwargs)
        if "sfLayout" in arguments:
            arguments["sfLayout"] = self.module.SfLayout(arguments["sfLayout"])
        code = arguments.pop("nvfp4_4over6", _NOT_GIVEN)
        if code != _NOT_GIVEN:
            arguments["nvfp4_4over6"] = self.recipes.nvfp4_4over6_from_code(code)
        return self.original(**arguments)

    def _fake(self, *args, **kwargs):
        """The results' shapes, strides and types, as FlashInfer makes them from the same input."""
        arguments = self._bound(args, kwargs)
        x = arguments[self.tensor]
        self._load_kernels(x.device)
        vector = 32 if self.name == "mxfp4_quantize" else arguments["sf_vec_size"]
        if vector not in (16, 32):
            raise NotImplementedError(f"sf_vec_size can be 16 or 32, it is {vector}")
        swizzled, rows = self._layout(arguments)
        # The batch-invariant kernels of the other two take the rows as they come.
        by_rows = arguments.get("batch_invariant") and self.name != "fp4_quantize"
        if x.stride(-2) == 1 and not by_rows:
            values, scale = self._quantised(x.transpose(-2, -1), vector, swizzled, rows)
            return values.transpose(-2, -1), scale.transpose(-2, -1)
        return self._quantised(x, vector, swizzled, rows)

    def _layout(self, arguments):
        """Whether the scale is swizzled, and to a multiple of how many rows it is padded."""
        if self.name == "fp4_quantize":
            swizzled = arguments["is_sf_swizzled_layout"]
            return swizzled, 8 if arguments["is_sf_8x4_layout"] else 128
        if "sfLayout" not in arguments:
            return True, 128
        layout = self.module.SfLayout(arguments["sfLayout"]).name
        swizzled = layout != _LINEAR or self.release < _HONOURS_LINEAR
        return swizzled, 8 if layout == _SWIZZLED_8X4 else 128

    def _quantised(self, x, vector, swizzled, rows):
        m, k = x.numel() // x.shape[-1], x.shape[-1]
        if k % vector:
            raise AssertionError(f"{k} values a row are no multiple of sf_vec_size {vector}")
        values = x.new_empty((*x.shape[:-1], k // 2), dtype=torch.uint8)
        columns = k // vector
        if not swizzled:
            return values, x.new_empty((m, columns), dtype=torch.uint8)
        padded = (columns + 3) // 4 * 4
        scale = x.new_empty(((m + rows - 1) // rows * rows, padded), dtype=torch.uint8)
        if self.release < _KEEPS_PADDING:
            # As FlashInfer does, with its error where the padding doesn't divide.
            scale = scale.reshape(-1, columns)
        return values, scale

    def _load_kernels(self, device):
        """Build or load the kernels while nothing is being captured; once in a process.

        A trace is the last moment before that. Nothing is done where CUDA isn't in use, and what
        fails here fails again, with its reason, where the operator runs.
        """
        if torch.cuda.is_initialized():
            from torch._subclasses.fake_tensor import unset_fake_temporarily

            with unset_fake_temporarily():
                _load_kernels(self.module, torch.cuda.get_device_capability(device))


def _among(value, allowed):
    return any(value is one for one in allowed) or (isinstance(value, str) and value in allowed)


@functools.cache
def _load_kernels(module, capability):
    try:
        module.get_fp4_quantization_module("".join(map(str, capability)))
    except Exception as error:
        hook.say(f"the FP4 kernels did not load before tracing: {error!r}")
