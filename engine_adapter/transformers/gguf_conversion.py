"""Converts a Llama in a GGUF file to a folder of safetensors: `python -m ...gguf_conversion FILE.gguf FOLDER`.

transformers reads such a file but refuses to save what it read, so weights and config move to a fresh model. Called by
`model_files.py`, which finds the file and publishes the folder.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM


def convert(gguf: Path, into: Path) -> None:
    """Writes config, weights in bfloat16, and tokeniser with its chat template."""
    source: dict[str, str] = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    read = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    fields = read.config.to_dict()
    for name in ("quantization_config", "_name_or_path"):
        fields.pop(name, None)
    # GGUF rounds the norm's epsilon to float32; the model was trained with 1e-5.
    fields |= {"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16", "rms_norm_eps": 1e-5}
    model = LlamaForCausalLM(LlamaConfig(**fields))
    missing = model.load_state_dict(read.state_dict(), strict=False).missing_keys
    if set(missing) - {"lm_head.weight"}:  # which is the embedding's, tied below
        raise SystemExit(f"{gguf} lacks the weights {', '.join(missing)}")
    model.tie_weights()
    model.bfloat16().save_pretrained(into)
    AutoTokenizer.from_pretrained(**source).save_pretrained(into)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
