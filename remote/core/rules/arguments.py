"""Failures before anything is loaded: flags, the model's path, its configuration."""

from __future__ import annotations

from remote.core.phases import Phase
from remote.core.rules.model import Confidence, Rule, Sign, Where, during

RULES = (
    Rule(
        kind="bad_cli",
        cause="The command line was refused: {what}.",
        signs=(
            Sign(
                r"error: (?P<what>unrecognized arguments.*|argument \S+: .+"
                r"|the following arguments are required.*|ambiguous option.*)",
                Where.LINE,
            ),
        ),
        advice=(
            "`inv deploy PROFILE --dry` shows the flags of the script; correct the one named",
            "a flag may be newer or older than the installed SGLang: `inv run 'python -m"
            " sglang.launch_server --help'` lists what it knows",
        ),
        taken_for={
            "transformers_incompat": "the command was refused before the model was looked at",
            "python_dep_missing": "everything was imported; only the command line is wrong",
        },
    ),
    Rule(
        kind="hf_access_or_path",
        cause="The model could not be found or read: {what}.",
        signs=(
            Sign(r"(?P<what>Repo id must be in the form.*)"),
            Sign(r"(?P<what>Cannot find any model weights.*)"),
            Sign(r"(?P<what>40[134] Client Error.*|[Gg]ated ?[Rr]epo.*|RepositoryNotFoundError.*)"),
            Sign(r"(?P<what>LocalEntryNotFoundError.*|OfflineModeIsEnabled.*)"),
            Sign(
                r"(?P<what>.*(?:is not a local folder and is not a valid model identifier"
                r"|does not appear to have a file named|[Cc]ouldn't connect to .https://huggingface"
                r"|[Cc]annot find the requested files in the (?:disk|local) cache"
                r"|[Ii]ncorrect path_or_model_id|Can't load (?:tokenizer|the configuration)).*)"
            ),
            Sign(
                r"(?P<what>No such file or directory: '?[^']*"
                r"(?:config\.json|tokenizer\S*|safetensors\S*|\.gguf)'?)"
            ),
        ),
        advice=(
            "check that the model folder exists on the host: `inv run 'ls MODEL'`",
            "401 or 403: accept the licence and give the server HF_TOKEN; without network, download"
            " the model beforehand",
        ),
        taken_for={
            "transformers_incompat": "the files were not there; the library is not at fault",
        },
    ),
    Rule(
        kind="transformers_incompat",
        cause="This transformers does not fit this SGLang or this model: {what}.",
        signs=(
            Sign(r"(?P<what>cannot import name '\w+' from '?transformers.*)"),
            Sign(r"(?P<what>ImportError from tokenization_\w+.*)"),
            Sign(r"(?P<what>.*already used by a Transformers.*)"),
            Sign(r"(?P<what>.*Transformers does not recognize this architecture.*)"),
            Sign(
                r"^KeyError: (?P<what>'[a-z][a-z0-9_]*')$",
                unless=r"weight",
                frames=r"transformers|get_config|model_config|tokenizer",
                not_frames=r"event_loop|handle_loop|run_batch|http_server|tokenizer_manager\.py",
            ),
            Sign(
                r"^KeyError: (?P<what>'[a-z][a-z0-9_]*')$",
                unless=r"weight|scale|proj|bias|lora|expert",
                not_frames=r"load_weights|weight_loader|event_loop|http_server|run_batch",
                phases=during(Phase.IMPORT, Phase.ARGUMENTS),
                confidence=Confidence.MEDIUM,
            ),
            Sign(
                r"^(?:AttributeError|TypeError): (?P<what>.*)",
                frames=r"^(?:transformers|tokenizers)/\S+|transformers_modules",
                phases=during(Phase.IMPORT, Phase.ARGUMENTS),
                confidence=Confidence.MEDIUM,
            ),
        ),
        advice=(
            "install the transformers version that this SGLang pins: `inv run 'pip show sglang'`"
            " names it under Requires",
            "for a tokenizer from the model's own code, take a newer model revision",
        ),
        taken_for={
            "model_arch_unsupported": "SGLang never got to choose a model class",
            "python_dep_missing": "the package is there; the name inside it is not",
        },
    ),
)
