"""Text on the command line: tokenised by the folder's tokenizer, with the loss that the network itself has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from spiritlevel.cli.tasks import task_named
from spiritlevel.cli.text_records import read_text_records
from spiritlevel.cli.token_data import IGNORED, TokenReader
from spiritlevel.values.errors import UsageError
from tests.cli.material import Run, strict

transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")
pytestmark = pytest.mark.slow

TEXT = "the quick brown fox jumps over the lazy dog and the dog sleeps on while the fox is long gone " * 3
LINES = [
    {"text": "the quick brown fox", "label": "good"},
    {"text": "lazy dog", "label": "bad"},
    {"text": "the dog sleeps on while the fox is long gone", "label": 2},
]
_SMALL = {"vocab_size": 300, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


def made_tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<pad>", "<end>", "<mask>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    return tokenizer


def save(folder: Path, model: Any) -> None:
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made_tokenizer(), pad_token="<pad>", eos_token="<end>", mask_token="<mask>"
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.fixture
def folder(here: Path) -> Path:
    torch.manual_seed(2)
    gpt = {"vocab_size": 300, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 40, "pad_token_id": 0}
    labels = {"id2label": {0: "bad", 1: "good", 2: "odd"}, "label2id": {"bad": 0, "good": 1, "odd": 2}}
    encoder = {**_SMALL, "intermediate_size": 24, "max_position_embeddings": 40, "pad_token_id": 0}
    save(here / "gpt", transformers.GPT2LMHeadModel(transformers.GPT2Config(**gpt)))
    save(here / "gpt-classes", transformers.GPT2ForSequenceClassification(transformers.GPT2Config(**gpt, **labels)))
    save(here / "bert", transformers.BertForMaskedLM(transformers.BertConfig(**encoder)))
    save(here / "classes", transformers.BertForSequenceClassification(transformers.BertConfig(**encoder, **labels)))
    (here / "text.txt").write_text(TEXT, encoding="utf-8")
    (here / "lines.jsonl").write_text("\n".join(map(json.dumps, LINES)), encoding="utf-8")
    return here


def measured(run: Run, folder: str, task: str, data: str, *words: str) -> Any:
    options = ("--task", task, "--data", data, "-m", "output_margin", "--json", "-", *words)
    ran = run("measure", f"hf:{folder}", *options)
    assert ran.code == 0, ran.err
    return strict(ran.out)


def test_the_loss_of_a_language_model_is_its_own(run: Run, folder: Path) -> None:
    model = transformers.GPT2LMHeadModel.from_pretrained("gpt").eval()
    tokens = torch.tensor(transformers.AutoTokenizer.from_pretrained("gpt")(TEXT)["input_ids"])
    header = measured(run, "gpt", "causal-lm", "text.txt", "--data-args", "length=16")["header"]
    blocks = [block for block in tokens.split(16) if len(block) > 1]
    with torch.no_grad():
        losses = [model(block[None], labels=block[None]).loss * (len(block) - 1) for block in blocks]
    expected = float(sum(losses)) / sum(len(block) - 1 for block in blocks)
    assert header["loss"] == pytest.approx(expected, rel=1e-5)
    assert header["samples"] == len(blocks)
    counted = sum(map(len, blocks))
    assert header["notes"][0] == f"{counted} tokens in {len(blocks)} sequences of 16, for causal-lm."
    assert header["weights"] == "gpt"


@pytest.mark.parametrize("name", ["classes", "gpt-classes"])
def test_the_loss_of_a_classifier_is_its_own(run: Run, folder: Path, name: str) -> None:
    model = transformers.AutoModelForSequenceClassification.from_pretrained(name).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(name)
    labels = [1, 0, 2]
    with torch.no_grad():
        losses = [
            model(**tokenizer(line["text"], return_tensors="pt", return_token_type_ids=False)).logits.log_softmax(-1)
            for line in LINES
        ]
    expected = -sum(float(row[0, label]) for row, label in zip(losses, labels)) / 3
    header = measured(run, name, "classification", "lines.jsonl")["header"]
    assert header["loss"] == pytest.approx(expected, rel=1e-5)
    assert header["notes"][1] == "2 are padded to that length; padding is masked and counts in no loss."
    cut = measured(run, name, "classification", "lines.jsonl", "--data-args", "length=2")["header"]
    assert any(note.endswith("cut off after 2 tokens.") for note in cut["notes"])


def test_masked_tokens_are_drawn_once_and_their_loss_is_the_models_own(run: Run, folder: Path) -> None:
    reader = TokenReader(task_named("masked-lm"), "hf:bert", seed=4)
    batch, notes = reader.read(read_text_records("text.txt"), "text.txt", {"length": 20, "masked": 0.5})
    chosen = batch["labels"] != IGNORED
    ids = torch.tensor(transformers.AutoTokenizer.from_pretrained("bert")(TEXT)["input_ids"])
    shown = batch["attention_mask"].bool()
    whole = torch.zeros_like(batch["input_ids"]).masked_scatter(shown, ids)
    assert int(shown.sum()) == len(ids)
    assert torch.equal(batch["labels"][chosen], whole[chosen])
    assert torch.equal(batch["input_ids"][~chosen], whole[~chosen])
    assert not chosen[~shown].any()
    assert 0.6 < float((batch["input_ids"][chosen] == 2).float().mean()) < 0.95
    assert "(50%), drawn with seed 4" in " ".join(notes)
    again, _ = TokenReader(task_named("masked-lm"), "hf:bert", seed=4).read(
        read_text_records("text.txt"), "text.txt", {"length": 20, "masked": 0.5}
    )
    assert all(torch.equal(batch[key], again[key]) for key in batch)
    model = transformers.BertForMaskedLM.from_pretrained("bert").eval()
    with torch.no_grad():
        expected = float(model(**batch).loss)
    words = ("--seed", "4", "--data-args", "length=20,masked=0.5")
    assert measured(run, "bert", "masked-lm", "text.txt", *words)["header"]["loss"] == pytest.approx(expected, rel=1e-5)


def test_curvature_of_a_language_model_agrees_with_the_dense_hessian(run: Run, folder: Path) -> None:
    from spiritlevel import Problem, reference
    from spiritlevel.cli.hugging_face import build_folder

    words = ("-m", "hessian_trace", "--parameters", "transformer.h.0.attn.*", "--parameters", "transformer.ln_f.*")
    found = measured(run, "gpt", "causal-lm", "text.txt", "--data-args", "length=16", "--dtype", "float64", *words)
    reader = TokenReader(task_named("causal-lm"), "hf:gpt")
    batch, _ = reader.read(read_text_records("text.txt"), "text.txt", {"length": 16})
    model = build_folder("hf:gpt", {}, None)[0].double()
    patterns = ["transformer.h.0.attn.*", "transformer.ln_f.*"]
    dense = reference.Dense(Problem(model, batch, "next_token", parameters=patterns))
    trace = found["measures"]["hessian_trace"]
    assert abs(trace["value"] - float(dense.hessian.trace())) <= 4 * trace["stderr"] + 1e-9


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("hf:gpt", "--task", "masked-lm"), "--task masked-lm needs a model that fills in masked tokens, and hf:gpt"),
        (("hf:bert", "--task", "causal-lm"), "holds a BertForMaskedLM for masked-lm"),
        (("hf:gpt", "--task", "classification"), "needs a classifier, and hf:gpt holds a GPT2LMHeadModel"),
        (("hf:gpt", "--task", "causal-lm", "--data-args", "length=41"), "length=41 is more than the 40 tokens"),
        (("hf:gpt", "--task", "causal-lm", "--data-args", "tokenizer=."), "needs a tokenizer, and . has none"),
        (("hf:gpt", "--task", "causal-lm", "--data-args", "text=words"), "line 1, has no field 'words' (it has text,"),
        (("hf:gpt", "--task", "causal-lm", "--model-args", "n_head=3"), "could not"),
    ],
)
def test_refused_in_one_sentence(run: Run, folder: Path, words: tuple[str, ...], sentence: str) -> None:
    ran = run("measure", words[0], "--data", "lines.jsonl", *words[1:])
    assert ran.code in (1, 2)
    assert sentence in ran.sentence
    assert len(ran.err.strip().splitlines()) == 1


def test_a_label_that_the_network_does_not_know_is_refused(folder: Path) -> None:
    reader = TokenReader(task_named("classification"), "hf:classes")
    for label, words in (
        ("god", "its labels are bad, good, odd; did you mean good"),
        (3, "the classes are 0 to 2"),
    ):
        Path("wrong.jsonl").write_text(json.dumps({"text": "the fox", "label": label}), encoding="utf-8")
        with pytest.raises(UsageError, match=words.replace("(", r"\(")):
            reader.read(read_text_records("wrong.jsonl"), "wrong.jsonl", {})


def test_a_tokenizer_that_knows_more_than_the_network_is_refused(folder: Path) -> None:
    small = transformers.GPT2Config(vocab_size=50, n_embd=8, n_layer=1, n_head=1)
    transformers.GPT2LMHeadModel(small).save_pretrained("narrow")
    reader = TokenReader(task_named("causal-lm"), "hf:narrow")
    with pytest.raises(UsageError, match="and the network knows 50 tokens"):
        reader.read(read_text_records("text.txt"), "text.txt", {"tokenizer": "gpt"})


def test_a_tokenizer_json_alone_is_enough(folder: Path) -> None:
    expected, _ = TokenReader(task_named("causal-lm"), "hf:gpt").read(read_text_records("text.txt"), "text.txt", {})
    for extra in ("tokenizer_config.json", "special_tokens_map.json"):
        (folder / "gpt" / extra).unlink(missing_ok=True)
    found, _ = TokenReader(task_named("causal-lm"), "hf:gpt").read(read_text_records("text.txt"), "text.txt", {})
    assert torch.equal(found["input_ids"], expected["input_ids"])


def test_several_folders_are_rows_and_are_compared(run: Run, folder: Path) -> None:
    torch.manual_seed(9)
    save(folder / "later", transformers.GPT2LMHeadModel(transformers.GPT2Config.from_pretrained("gpt")))
    options = ("--task", "causal-lm", "--data", "text.txt", "-m", "output_margin", "-q")
    rows = strict(run("measure", "hf:gpt", "gpt", "later", *options, "--json", "-").out)["reports"]
    assert [row["header"]["weights"] for row in rows] == ["gpt", "later"]
    assert rows[0]["header"]["loss"] != rows[1]["header"]["loss"]
    words = ("--no-search", "--groups", "0", "--test", "lines.jsonl", "--json", "-")
    compared = run("compare", "hf:gpt", "gpt", "later", *options, *words)
    assert compared.code == 0, compared.err
    assert strict(compared.out)["reports"]["gpt"]["header"]["loss"] == rows[0]["header"]["loss"]
