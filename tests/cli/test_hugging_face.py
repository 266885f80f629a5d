"""Networks in Hugging Face folders: every architecture is loaded as from_pretrained loads it, and nothing runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from spiritlevel.cli.hugging_face import build_folder, check_folder, load_transformers_weights
from spiritlevel.cli.tasks import task_named
from spiritlevel.values.errors import SpiritlevelError, UsageError
from tests.cli.architectures import ARCHITECTURES, build, inputs_for

transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")
pytestmark = pytest.mark.slow
AVAILABLE = [name for name in ARCHITECTURES if hasattr(transformers, name)]


def outputs(model: Any, given: dict[str, torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        return model(**given).logits


def test_there_are_enough_architectures() -> None:
    assert len(AVAILABLE) >= 28


@pytest.mark.parametrize("name", AVAILABLE)
def test_a_folder_gives_what_from_pretrained_gives(name: str, tmp_path: Path) -> None:
    model = build(transformers, name)
    model.save_pretrained(tmp_path)
    theirs = getattr(transformers, name).from_pretrained(tmp_path, attn_implementation="eager")
    given = inputs_for(model)
    ours, weights, notes = build_folder(f"hf:{tmp_path}", {}, None)
    expected = outputs(theirs, given)
    assert type(ours) is type(theirs)
    assert (weights, notes) == (str(tmp_path), ())
    assert not ours.training
    torch.testing.assert_close(outputs(ours, given), expected, rtol=1e-5, atol=1e-6)
    assert expected.abs().max() > 1e-3  # else two networks of zeros would agree
    for (name_of, own), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert torch.equal(own, other), name_of


@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "ViTForImageClassification", "MixtralForCausalLM"])
def test_a_folder_of_pickled_tensors_gives_the_same(name: str, tmp_path: Path) -> None:
    model = build(transformers, name)
    model.save_pretrained(tmp_path)
    from safetensors.torch import load_file

    torch.save(load_file(tmp_path / "model.safetensors"), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    ours, _, _ = build_folder(f"hf:{tmp_path}", {}, None)
    torch.testing.assert_close(
        outputs(ours, inputs_for(model)), outputs(model, inputs_for(model)), rtol=1e-5, atol=1e-6
    )


def test_a_pickle_that_runs_code_runs_none(tmp_path: Path) -> None:
    build(transformers, "GPT2LMHeadModel").save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()

    class Runs:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "it-ran",)

    torch.save({"transformer.wte.weight": torch.zeros(40, 16), "other": Runs()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(SpiritlevelError, match="has no weights for"):
        build_folder(f"hf:{tmp_path}", {}, None)
    assert not (tmp_path / "it-ran").exists()


def test_weights_under_the_names_of_saving_are_loaded_into_a_network(tmp_path: Path) -> None:
    first, second = build(transformers, "ViTForImageClassification"), build(transformers, "ViTForImageClassification")
    with torch.no_grad():
        second.classifier.bias.add_(1.0)
    first.save_pretrained(tmp_path / "a")
    second.save_pretrained(tmp_path / "b")
    torch.save({"state_dict": {f"module.{k}": v for k, v in second.state_dict().items()}}, tmp_path / "trained.pt")
    ours, _, _ = build_folder(f"hf:{tmp_path / 'a'}", {}, None)
    given = inputs_for(ours)
    for place in ("b", "b/model.safetensors", "trained.pt", "a"):
        load_transformers_weights(ours, str(tmp_path / place), None)
        wanted = first if place == "a" else second
        torch.testing.assert_close(outputs(ours, given), outputs(wanted, given), rtol=1e-5, atol=1e-6)
    other = transformers.ResNetForImageClassification(transformers.ResNetConfig(depths=[1], hidden_sizes=[8]))
    other.save_pretrained(tmp_path / "c")
    with pytest.raises(SpiritlevelError, match="does not fit the ViTForImageClassification"):
        load_transformers_weights(ours, str(tmp_path / "c"), None)


def test_a_folder_without_weights_waits_for_them(tmp_path: Path) -> None:
    build(transformers, "GPT2LMHeadModel").config.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["GPT2LMHeadModel"]}))
    assert build_folder(f"hf:{tmp_path}", {}, None, bare=True)[1] is None
    with pytest.raises(SpiritlevelError, match=r"none of model\.safetensors"):
        build_folder(f"hf:{tmp_path}", {}, None)


def test_the_task_chooses_the_network(tmp_path: Path) -> None:
    model = build(transformers, "BertForMaskedLM")
    model.save_pretrained(tmp_path)
    assert type(build_folder(f"hf:{tmp_path}", {}, task_named("masked-lm"))[0]) is type(model)
    with pytest.raises(UsageError, match="holds a BertForMaskedLM for masked-lm"):
        build_folder(f"hf:{tmp_path}", {}, task_named("causal-lm"))
    pretrained = transformers.BertForPreTraining(model.config)
    pretrained.save_pretrained(tmp_path / "pre")
    ours, _, notes = build_folder(f"hf:{tmp_path / 'pre'}", {}, task_named("masked-lm"))
    assert type(ours) is type(model)
    assert "which this network has no place for" in notes[0]
    with pytest.raises(SpiritlevelError, match=r"no weights for classifier\.bias, classifier\.weight"):
        build_folder(f"hf:{tmp_path / 'pre'}", {}, task_named("classification"))


def test_what_is_no_folder_of_a_network_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing is fetched"):
        check_folder("hf:gpt2-of-nobody")
    with pytest.raises(UsageError, match=r"no config\.json"):
        check_folder(f"hf:{tmp_path}")
    build(transformers, "GPT2LMHeadModel").save_pretrained(tmp_path)
    check_folder(f"hf:{tmp_path}")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["MyOwnModel"]}))
    with pytest.raises(UsageError, match="saved from MyOwnModel, which transformers"):
        build_folder(f"hf:{tmp_path}", {}, None)
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "gptq"}}))
    with pytest.raises(SpiritlevelError, match="quantised"):
        build_folder(f"hf:{tmp_path}", {}, None)
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(UsageError, match="merge_and_unload"):
        check_folder(f"hf:{tmp_path}")
