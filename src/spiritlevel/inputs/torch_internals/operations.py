"""Kinds of operations by the names under which autograd records them, for their second derivatives.

A name that stands in no set is an operation about which nothing is known.  What is done with those that are known is
held against autograd's own second derivative before any number rests on it: a wrong place here costs time, not truth.
"""

from __future__ import annotations

from spiritlevel.inputs.torch_internals import nodes

# Linear, or made of pieces that are, in all their inputs together.
LINEAR = frozenset(
    {
        nodes.ADAPTIVE_AVERAGE_POOL_2D, nodes.ADD, nodes.AVERAGE_POOL_2D, nodes.CATENATE, nodes.CLONE, nodes.EXPAND,
        nodes.HARDTANH, nodes.LEAKY_RELU, nodes.MATRIX_TRANSPOSE, nodes.MAX_POOL_2D, nodes.MAX_POOL_3D, nodes.MEAN,
        nodes.MEAN_ALONG, nodes.NEGATE, nodes.PAD, nodes.PARAMETER, nodes.PERMUTE, nodes.RELU, nodes.RESHAPE_ALIAS,
        nodes.SELECT, nodes.SLICE, nodes.SQUEEZE, nodes.SQUEEZE_ALONG, nodes.STACK, nodes.SUBTRACT, nodes.SUM,
        nodes.SUM_ALONG, nodes.TRANSPOSE, nodes.UNSAFE_VIEW, nodes.UNSQUEEZE, nodes.VIEW,
        "AbsBackward0", "AddBackward1", "AdaptiveAvgPool1DBackward0", "AdaptiveMaxPool2DBackward0", "AliasBackward0",
        "AmaxBackward0", "AminBackward0", "AsStridedBackward0", "AsStridedBackward1",
        "AvgPool3DBackward0", "CeilBackward0", "ClampBackward0",
        "ClampBackward1", "ClampMaxBackward0", "ClampMinBackward0", "CopyBackwards", "CopySlices", "CumsumBackward0",
        "DiagonalBackward0", "DivBackward1", "DropoutBackward0", "EmbeddingBackward0", "FlipBackward0",
        "GatherBackward0", "HardsigmoidBackward0", "HardshrinkBackward0", "Im2ColBackward0", "IndexAddBackward0",
        "IndexBackward0", "IndexPutBackward0", "IndexSelectBackward0", "LiftFreshBackward0", "MaskedFillBackward0",
        "MaskedScatterBackward0", "MaskedSelectBackward0", "MaxBackward0", "MaxBackward1", "MaximumBackward0",
        "MinBackward0", "MinBackward1", "MinimumBackward0", "MulBackward1", "NativeDropoutBackward0",
        "PixelShuffleBackward0", "PixelUnshuffleBackward0", "ReflectionPad1DBackward0", "ReflectionPad2DBackward0",
        "RepeatBackward0", "RepeatInterleaveBackward0", "ReplicationPad1DBackward0", "ReplicationPad2DBackward0",
        "ReshapeBackward0", "RollBackward0", "RsubBackward0", "RsubBackward1", "ScatterAddBackward0",
        "ScatterBackward0", "SelectScatterBackward0", "SignBackward0", "SliceScatterBackward0", "SoftshrinkBackward0",
        "SortBackward0", "SplitBackward0", "SplitWithSizesBackward0", "SqueezeBackward2", "SubBackward1",
        "SwapaxesBackward0", "TakeAlongDimBackward0", "ThresholdBackward0", "ToCopyBackward0", "TopkBackward0",
        "TraceBackward0", "TransposeBackward1", "TrilBackward0", "TriuBackward0", "UnbindBackward0", "UnfoldBackward0",
        "UnsafeSplitBackward0", "UnsafeSplitWithSizesBackward0",
        "UpsampleBilinear2DBackward0", "UpsampleBilinear2DBackward1", "UpsampleLinear1DBackward0",
        "UpsampleNearest1DBackward0", "UpsampleNearest2DBackward0", "UpsampleNearest2DBackward1", "WhereBackward0",
        "LeakyReluBackwardBackward0", "ThresholdBackwardBackward0", "ZerosLikeBackward0",
    }
)  # fmt: skip

# Entry by entry in one input, and curved.
POINTWISE = frozenset(
    {
        "AcosBackward0", "AcoshBackward0", "AsinBackward0", "AsinhBackward0", "AtanBackward0", "AtanhBackward0",
        "CeluBackward0", "CosBackward0", "CoshBackward0", "EluBackward0", "ErfBackward0", "ErfcBackward0",
        "Exp2Backward0", "ExpBackward0", "Expm1Backward0", "GeluBackward0", "HardswishBackward0", "LgammaBackward0",
        "Log10Backward0", "Log1PBackward0", "Log2Backward0", "LogBackward0", "LogSigmoidBackward0", "LogitBackward0",
        "MishBackward0", "PowBackward0", "ReciprocalBackward0", "RsqrtBackward0", "SigmoidBackward0", "SiluBackward0",
        "SinBackward0", "SincBackward0", "SinhBackward0", "SoftplusBackward0", "SqrtBackward0", "TanBackward0",
        "TanhBackward0",
    }
)  # fmt: skip

# Linear in each of two inputs alone.
MULTIPLY = nodes.MULTIPLY
DIVIDE = "DivBackward0"
# Products of matrices, with the places of their two factors among the inputs.
MATRIX_PRODUCTS = {"BmmBackward0": (0, 1), nodes.MM: (0, 1), nodes.ADDMM: (1, 2), "BaddbmmBackward0": (1, 2)}
# Of which those take a weight as it is, with rows of activations before it.
WEIGHTED_PRODUCTS = frozenset({nodes.MM, nodes.ADDMM})
# Products of an input with a weight, or normalisations by statistics of the past: linear in each of their inputs alone.
WEIGHTED = frozenset({nodes.CONVOLUTION, "MvBackward0", "DotBackward0", "PreluKernelBackward0", *nodes.BATCH_NORMS})

# The gradient of an entrywise function as an operation, where a model differentiates inside forward: a φ'(h), linear in
# what is passed back and curved in what the function kept, its input or its output.
TANH_SLOPE, SIGMOID_SLOPE = "TanhBackwardBackward0", "SigmoidBackwardBackward0"
SOFTPLUS_SLOPE, GELU_SLOPE = "SoftplusBackwardBackward0", "GeluBackwardBackward0"
SLOPES = {TANH_SLOPE: "output", SIGMOID_SLOPE: "output", SOFTPLUS_SLOPE: "self", GELU_SLOPE: "self"}

SOFTMAX = frozenset({"SoftmaxBackward0", "SafeSoftmaxBackward0"})
LOG_SOFTMAX = "LogSoftmaxBackward0"
LAYER_NORM, GROUP_NORM = "NativeLayerNormBackward0", "NativeGroupNormBackward0"
# Straight nowhere, so that nothing has to be computed to call them curved; products of matrices that meet are too.
CURVED_EVERYWHERE = frozenset(
    {"ErfBackward0", "ExpBackward0", "GeluBackward0", "SigmoidBackward0", "SiluBackward0", "TanhBackward0"}
    | {LOG_SOFTMAX, LAYER_NORM, GROUP_NORM, *SOFTMAX, *MATRIX_PRODUCTS}
)
# Curved in one input, known only by their products.
APPLIED = frozenset(
    {
        "CumprodBackward0", "FusedRmsNormBackward0", "LinalgVectorNormBackward0", "LogcumsumexpBackward0",
        "LogsumexpBackward0", "NormBackward0", "NormBackward1", "ProdBackward0", "ProdBackward1", "StdBackward0",
        "VarBackward0",
    }
)  # fmt: skip

# Of the linear ones those that go entry by entry in all of their inputs.
ENTRYWISE_LINEAR = frozenset(
    {nodes.ADD, nodes.SUBTRACT, nodes.NEGATE, nodes.CLONE, nodes.HARDTANH, nodes.LEAKY_RELU, nodes.RELU}
    | {"AbsBackward0", "AddBackward1", "SubBackward1", "MulBackward1", "DivBackward1", "RsubBackward1", "RsubBackward0"}
    | {"ClampBackward1", "ClampMaxBackward0", "ClampMinBackward0", "HardsigmoidBackward0", "ThresholdBackward0"}
)
ENTRYWISE = POINTWISE | ENTRYWISE_LINEAR | {MULTIPLY, DIVIDE}
# Of which x · (mean(x²) + ε)^-½ is made where it is written out.
POWER, INVERSE_ROOT = "PowBackward0", "RsqrtBackward0"
PLUS_CONSTANT = frozenset({nodes.ADD, "AddBackward1"})

EMBEDDING = "EmbeddingBackward0"
# Linear operations that parameters go through before they meet samples.
CARRIERS = frozenset(
    {
        nodes.CLONE, nodes.MATRIX_TRANSPOSE, nodes.NEGATE, nodes.PERMUTE, nodes.RESHAPE_ALIAS, nodes.SELECT,
        nodes.SLICE, nodes.SQUEEZE, nodes.SQUEEZE_ALONG, nodes.TRANSPOSE, nodes.UNSAFE_VIEW, nodes.UNSQUEEZE,
        nodes.VIEW, "IndexBackward0", "IndexSelectBackward0", "RsubBackward0", "RsubBackward1", "SplitBackward0",
        "SplitWithSizesBackward0", "UnbindBackward0",
    }
)  # fmt: skip
