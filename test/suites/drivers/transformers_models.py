#!/usr/bin/env python3
"""Twelve families of transformers' models, tiny and with random weights from one seed: tokens that they generate, the
logits, and the loss, gradients and parameters of one training step. A unit is a family with one type of numbers."""

import argparse

from driver import Unavailable, serve, steady

SEED = 20
VOCABULARY, PROMPT_TOKENS, NEW_TOKENS, BATCH = 128, 8, 12, 2
TOLERANCES = {"float32": (1e-4, 1e-5), "bfloat16": (3e-2, 3e-2)}

COMMON = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
DECODER = {**COMMON, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
GATED = {**DECODER, "num_key_value_heads": 2, "intermediate_size": 128, "max_position_embeddings": 64}
# By family: the class of automatic models, and the settings of a tiny model.
FAMILIES = {
    "gpt2": ("CausalLM", {**COMMON, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    "llama": ("CausalLM", GATED),
    "mistral": ("CausalLM", {**GATED, "sliding_window": 16}),
    "qwen2": ("CausalLM", GATED),
    "gemma2": ("CausalLM", {**GATED, "head_dim": 16, "sliding_window": 16, "query_pre_attn_scalar": 16}),
    "phi3": ("CausalLM", {**GATED, "original_max_position_embeddings": 64}),
    "mixtral": ("CausalLM", {**GATED, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "opt": ("CausalLM", {**DECODER, "ffn_dim": 128, "word_embed_proj_dim": 64, "max_position_embeddings": 64}),
    "gpt_neox": ("CausalLM", {**DECODER, "intermediate_size": 128, "max_position_embeddings": 64}),
    "bloom": ("CausalLM", {**COMMON, "hidden_size": 64, "n_layer": 2, "n_head": 4}),
    "mamba": ("CausalLM", {**COMMON, "hidden_size": 64, "num_hidden_layers": 2, "state_size": 8}),
    "t5": ("Seq2SeqLM", {
        "vocab_size": VOCABULARY, "pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0, "d_model": 64,
        "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4
    }),
}


class Models:
    def __init__(self, device):
        try:
            import torch
            import transformers
        except ImportError as missing:
            raise Unavailable(f"not installed: {missing}") from missing
        if device == "cuda" and not torch.cuda.is_available():
            raise Unavailable("PyTorch finds no GPU")
        self.torch, self.transformers, self.device = torch, transformers, device
        self.versions = {"torch": torch.__version__, "transformers": transformers.__version__}

    def units(self):
        return [f"{family}/{dtype}" for family in FAMILIES for dtype in TOLERANCES]

    def model(self, family, dtype):
        kind, options = FAMILIES[family]
        config = self.transformers.AutoConfig.for_model(family, **options)
        made = getattr(self.transformers, f"AutoModelFor{kind}").from_config(config)
        return made.to(self.device).to(getattr(self.torch, dtype))

    def run(self, unit, recorder):
        torch, tolerance = self.torch, TOLERANCES[unit.rpartition("/")[2]]
        torch.manual_seed(SEED)
        kept = {}

        def make():
            kept["model"] = self.model(*unit.split("/"))
            kept["tokens"] = torch.randint(3, VOCABULARY, (BATCH, PROMPT_TOKENS)).to(self.device)
            return list(kept["model"].parameters())

        def generate():
            start = {"decoder_start_token_id": 0} if FAMILIES[unit.split("/")[0]][0] == "Seq2SeqLM" else {}
            return [kept["model"].eval().generate(kept["tokens"], attention_mask=torch.ones_like(kept["tokens"]),
                                                  do_sample=False, max_new_tokens=NEW_TOKENS,
                                                  min_new_tokens=NEW_TOKENS, pad_token_id=0, eos_token_id=2, **start)]

        def step():
            model = kept["model"].train()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            out = model(input_ids=kept["tokens"], labels=kept["tokens"])
            out.loss.backward()
            gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
            optimizer.step()
            return [out.loss, out.logits, *gradients, *model.parameters()]

        for name, work in (("weights", make), ("generate", generate), ("training step", step)):
            recorder.begin(name)
            try:
                values = [self.value(tensor) for tensor in work()]
            except Exception as error:
                recorder.end(name, f"error {type(error).__name__}: {steady(error)}", reason=str(error))
                if name == "weights":
                    return
                continue
            recorder.end(name, "pass", values=values, tolerance=tolerance)

    def value(self, tensor):
        torch = self.torch
        tensor = tensor.detach().cpu().contiguous()
        kind = {torch.float32: "f", torch.bfloat16: "b"}.get(tensor.dtype, "bytes")
        return kind, (*tensor.shape, str(tensor.dtype)), tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    chosen = parser.parse_args()
    serve(lambda: Models(chosen.device))
