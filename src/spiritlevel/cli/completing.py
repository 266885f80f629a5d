"""What a shell completes: names that stand here so that no library is loaded for them; files are the shell's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

# A test holds these to what they are the names of.
NETS = (
    "digits_mlp", "digits_cnn", "softmax_regression", "mlp", "mlp_9960", "mlp_petzka", "fcnbn", "lenet5", "allcnnc",
    "preresnet164", "wrn28_10", "wrn16_4", "vgg16_bn",
)  # fmt: skip
DATASETS = ("digits", "mnist", "fashion-mnist", "cifar10", "cifar100")
LOSSES = (
    "cross_entropy", "binary_cross_entropy", "mean_squared_error", "normalized_cross_entropy", "next_token",
    "same_token", "gaussian_nll", "contrastive_pairs", "model",
)  # fmt: skip
TASKS = ("causal-lm", "masked-lm", "classification")
MEASURE_GROUPS = ("default", "cheap", "papers", "all")
MEASURES = (
    "hessian_trace", "ggn_trace", "hessian_top_eigenvalue", "hessian_spectral_norm", "hessian_frobenius",
    "hessian_log_volume", "noise_curvature", "keskar_sharpness", "weight_norm", "spectral_complexity", "aceht",
    "margin_bound", "output_margin", "softmax_margin", "margin_skewness", "softmax_impurity",
    "matrix_normalized_sharpness", "normalized_sharpness", "pac_bayes_terms", "normalized_sharpness_direct",
    "fisher_rao_norm", "fisher_rao_diagonal", "kappa_last", "kappa_max", "kappa_sum", "kappa_tau_last",
    "kappa_tau_max", "kappa_tau_sum", "rho_max", "rho_sum", "relative_flatness", "feature_robustness",
)  # fmt: skip
STUDIES = (
    "margins-fig1", "margins-fig2", "margins-lenet-mnist", "margins-fcnbn-mnist-256",
    "margins-fcnbn-mnist-4096", "margins-appendix-lenet5-cifar10", "margins-appendix-fcnbn-cifar10",
    "margins-batch", "margins-scale", "margins-cost", "margins-outliers", "nfm-random-labels-mlp-mnist",
    "nfm-random-labels-lenet-mnist", "nfm-random-labels-lenet-cifar10", "nfm-random-labels-wrn-cifar10",
    "nfm-invariance", "nfm-a1", "false-friend-l2-softmax", "false-friend-l2-mlp-9960",
    "false-friend-l2-mlp-100", "false-friend-l2-allcnnc", "false-friend-l2-preresnet164",
    "false-friend-l2-wrn28-10", "false-friend-adam-cifar100", "false-friend-adam-cifar10",
    "false-friend-bnmode", "false-friend-stability", "false-friend-theorem1", "false-friend-counterexample",
    "false-friend-deep-linear", "false-friend-keskar", "petzka-cifar", "petzka-reparam", "petzka-mnist",
    "petzka-robustness",
)  # fmt: skip

Completer = Callable[[str], list[str]]


def one_of(names: Sequence[str]) -> Completer:
    """Return what completes one name; where none begins so, the shell completes files."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


def several_of(names: Sequence[str]) -> Completer:
    """Return what completes the last of several names between commas."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        chosen = before.split(",")
        return [f"{before}{comma}{name}" for name in names if name.startswith(last) and name not in chosen]

    return complete


complete_models = one_of(NETS)
complete_data = one_of(DATASETS)
complete_losses = one_of(LOSSES)
complete_tasks = one_of(TASKS)
complete_measures = several_of((*MEASURE_GROUPS, *MEASURES))
complete_measure = one_of(MEASURES)
complete_studies = one_of(STUDIES)
complete_devices = one_of(("cpu", "cuda", "cuda:0"))
complete_dtypes = one_of(("float32", "float64"))
complete_precisions = one_of(("float32", "tf32", "bfloat16"))
complete_modes = one_of(("eval", "train"))
complete_operators = one_of(("hessian", "ggn", "batch_variance"))
complete_strategies = one_of(("auto", "looped", "batched", "forward", "compiled", "finite differences"))
complete_strengths = several_of(("mild", "usual", "extreme"))
complete_lists = one_of(("measures", "nets", "data", "studies"))
complete_sizes = one_of(("smoke", "small", "medium", "paper"))
complete_engines = one_of(("here", "processes", "ray"))
