"""Train a GPT-2 of two million parameters on Python's own library, in some minutes on a CPU, and save it.

    pip install "spiritlevel[hf]"
    python examples/tiny_gpt.py --folder tiny-gpt

The text is the source of the standard library of the Python that runs this, so nothing is fetched. What is left in the
folder is what ``save_pretrained`` writes (network and tokenizer), and ``held-out.jsonl`` with text that was not trained
on. The command to measure the network comes last.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

END = "<|endoftext|>"
HELD_OUT_TOKENS = 4096


def standard_library() -> list[str]:
    """Return the sources of the standard library's top modules, in the order of their names."""
    files = sorted(Path(os.__file__).parent.glob("*.py"))
    return [text for file in files if len(text := file.read_text(encoding="utf-8", errors="ignore")) > 1000]


def trained_tokenizer(texts: list[str], size: int) -> Tokenizer:
    """Return a tokenizer of bytes joined to pairs, which can spell any text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=[END], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def held_out_lines(tokenizer: Tokenizer, texts: list[str]) -> list[str]:
    """Return JSON lines with the beginnings of texts, of some thousand tokens together."""
    each = HELD_OUT_TOKENS // len(texts)
    return [json.dumps({"text": tokenizer.decode(tokenizer.encode(text).ids[:each])}) for text in texts]


def train(model: GPT2LMHeadModel, tokens: torch.Tensor, options: argparse.Namespace) -> None:
    """Train with Adam on random stretches of tokens; the rate rises for a tenth of the steps, then falls to zero."""
    generator = torch.Generator().manual_seed(options.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate, weight_decay=0.01)
    warm = max(1, options.steps // 10)

    def factor(step: int) -> float:
        return min((step + 1) / warm, (options.steps - step) / max(1, options.steps - warm))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    started = time.monotonic()
    model.train()
    for step in range(options.steps):
        starts = torch.randint(len(tokens) - options.length, (options.batch,), generator=generator)
        block = torch.stack([tokens[start : start + options.length] for start in starts.tolist()])
        loss = model(input_ids=block, labels=block).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0 or step == options.steps - 1:
            print(f"step {step}: loss {loss.item():.3f}, {time.monotonic() - started:.0f} s", flush=True)
    model.eval()


def main() -> None:
    """Train, save, and say what to run next."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", default="tiny-gpt", help="where everything is saved")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=1024)
    parser.add_argument("--length", type=int, default=128, help="tokens in a sequence")
    parser.add_argument("--batch", type=int, default=16, help="sequences in a step")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    texts = standard_library()
    training, rest = texts[:-16], texts[-16:]
    tokenizer = trained_tokenizer(training, options.vocabulary)
    tokens = torch.tensor([token for text in training for token in tokenizer.encode(text).ids])
    torch.manual_seed(options.seed)
    # Without dropout the network that is measured is the one that was trained.
    none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    end = tokenizer.token_to_id(END)
    config = GPT2Config(
        vocab_size=tokenizer.get_vocab_size(), n_positions=options.length, n_embd=options.width,
        n_layer=options.layers, n_head=4, bos_token_id=end, eos_token_id=end, **none,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    count = sum(parameter.numel() for parameter in model.parameters())
    print(f"{count:,} parameters, {len(tokens):,} tokens of {len(training)} files", flush=True)
    train(model, tokens, options)

    folder = Path(options.folder)
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END).save_pretrained(folder)
    held_out = folder / "held-out.jsonl"
    held_out.write_text("\n".join(held_out_lines(tokenizer, rest)) + "\n", encoding="utf-8")
    print("Measure it:")
    print(f"spiritlevel measure hf:{folder} --task causal-lm --data {held_out} --seconds 60")


if __name__ == "__main__":
    main()
