"""What is installed does not fit together: driver, libraries, packages, model registry."""

from __future__ import annotations

from remote.core.rules.model import Confidence, Rule, Sign, Where

DRIVER = Rule(
    kind="driver_runtime_mismatch",
    cause="The NVIDIA driver does not serve this CUDA runtime: {what}.",
    signs=(
        Sign(
            r"(?P<what>NVIDIA driver on your system is too old.*"
            r"|driver version is insufficient.*|(?:CUDA|cuda\w*) ?.*?Error 80[0-9]\b.*"
            r"|\bError 80[0-9]: .*|No accelerator .* is available.*"
            r"|forward compatibility was attempted on non supported HW.*"
            r"|Found no NVIDIA driver.*)",
            Where.ANYWHERE,
        ),
    ),
    advice=(
        "update the driver, or install the torch build for its CUDA: `inv run nvidia-smi` and"
        " `inv run 'python -m torch.utils.collect_env'` show both",
        "a host without a GPU, or a CPU build of torch (+cpu), serves with `--device cpu` only",
        "error 802 means that the fabric manager is not running: start nvidia-fabricmanager",
    ),
    taken_for={
        "cuda_lib_missing": "the libraries were found; the driver below them is too old or not up",
        "no_kernel_image": "no kernel was tried: the runtime did not initialise",
    },
)

ABI = Rule(
    kind="abi_undefined_symbol",
    cause="A compiled package does not fit what it was loaded into: undefined symbol {what}.",
    signs=(
        Sign(r"undefined symbol: (?P<what>\w+)"),
        Sign(r"symbol lookup error: .*undefined symbol: (?P<what>\w+)", Where.LINE),
    ),
    advice=(
        "a symbol beginning with `_Z` belongs to torch: reinstall sgl-kernel (or the package named)"
        " built for the installed torch",
        "a symbol beginning with `cu` belongs to the driver: it is too old",
    ),
    taken_for={
        "cuda_lib_missing": "the library was found and opened; a symbol in it was not",
        "no_kernel_image": "the package failed to load, before any kernel",
    },
)

CUDA_LIBRARY = Rule(
    kind="cuda_lib_missing",
    cause="A library or the CUDA toolkit is missing on the host: {what}.",
    signs=(
        Sign(r"(?P<what>lib[\w+.-]+\.so[.\d]*): cannot open shared object file"),
        Sign(r"error while loading shared libraries: (?P<what>lib\S+\.so[.\d]*)", Where.LINE),
        Sign(
            r"(?P<what>CUDA_HOME environment variable is not set|Could not find nvcc"
            r"|(?:nvcc|cicc): (?:command )?not found|No such file or directory: '\S*nvcc')",
            Where.ANYWHERE,
        ),
        Sign(r"(?P<what>deep_gemm/__init__\.py:_find_cuda_home)", Where.FRAMES),
    ),
    advice=(
        "install exactly what is named (libnuma1, libnvrtc), or the CUDA toolkit, and set"
        " `cuda_home` for the host; then `inv run 'nvcc --version'`",
        "ignore an advice to reinstall sgl_kernel that stands beside a missing library",
    ),
    taken_for={
        "abi_undefined_symbol": "the library itself was not found",
        "python_dep_missing": "the Python package is there; what it links to is not",
    },
)

GATE = Rule(
    kind="dep_version_gate",
    cause="A dependency is absent or not of the version asked for: {what}.",
    signs=(
        Sign(r"(?P<what>\S+ with minimum required version \S+ is not installed)", Where.ANYWHERE),
        Sign(r"PackageNotFoundError: (?P<what>.*flashinfer\S*)", Where.ANYWHERE),
        Sign(r"(?P<what>\w.*requires (?:backend )?version >=.*)", Where.ANYWHERE),
        Sign(
            r"(?P<what>\w.*\b(?:requires|needs) (?:\w+[ -])?(?:flashinfer|sgl[-_]kernel|torch"
            r"|triton|transformers|cudnn|CUDA) ?(?:version )?(?:>=|<=|==).*)"
        ),
        Sign(
            r"(?P<what>(?:Failed loading|Fetching cubin|Failed to get cubin|Failed to download)"
            r".*cubin\S*.*)",
            Where.ANYWHERE,
        ),
        Sign(
            r"(?P<what>.*mismatched flashinfer.*"
            r"|.*flashinfer\S* version .* (?:does not|doesn't) match.*)",
            Where.ANYWHERE,
        ),
        Sign(
            r"TypeError: (?P<what>'NoneType' object is not callable)",
            confidence=Confidence.MEDIUM,
        ),
    ),
    advice=(
        "install exactly the version named: `inv run 'pip install NAME==VERSION'`",
        "a host without network needs flashinfer-cubin and flashinfer-jit-cache installed before",
        "'NoneType' is not callable: an import further up failed quietly; look for it in the log",
    ),
    taken_for={
        "jit_build_failed": "nothing was compiled: a version was refused, or a binary not fetched",
        "graph_capture_oom": "the advice about memory printed below it does not apply",
    },
)

PYTHON = Rule(
    kind="python_dep_missing",
    cause="A Python package is missing in the interpreter that ran: {what}.",
    signs=(
        Sign(r"ModuleNotFoundError: (?:No module named )?'?(?P<what>(?!common_ops)[\w.]+)"),
        Sign(
            r"^\S*python\S*: (?:Error while finding module specification for .*|No module named"
            r" '?(?P<what>[\w.]+)'?)",
            Where.LINE,
        ),
    ),
    advice=(
        "`inv run 'python -m pip list'` shows the host's venv; install the package named there",
        "sglang itself missing: the launcher ran another interpreter than the venv's",
    ),
    taken_for={"cuda_lib_missing": "a Python module is missing, not a shared library"},
)

SWALLOWED = Rule(
    kind="model_import_swallowed",
    cause=(
        "The class of this model was not registered, because importing its module had failed"
        " quietly: {what}."
    ),
    advice=(
        "repair the import named in the `Ignore import error` line; the architecture is supported",
    ),
    taken_for={
        "model_arch_unsupported": "SGLang has this architecture; its module failed to import",
    },
)

ARCHITECTURE = Rule(
    kind="model_arch_unsupported",
    cause="This SGLang has no implementation of {what}.",
    signs=(
        Sign(r"Model architectures (?P<what>\[.*?\]) are not supported", Where.ANYWHERE),
        Sign(r"Unsupported architectures: (?P<what>.*)", Where.ANYWHERE),
    ),
    advice=(
        "take an SGLang that knows the architecture; check first that no `Ignore import error` line"
        " names its module",
    ),
    taken_for={
        "model_import_swallowed": "no failed import of that model's module stands in the log",
        "unsupported_combo": "no class for the model at all, whatever the backends",
    },
)
