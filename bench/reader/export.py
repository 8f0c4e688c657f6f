"""Writes a trained judge as an int8 ONNX file: `python -m bench.reader.export WEIGHTS judge.onnx`."""

import argparse
import tempfile
from pathlib import Path

import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from torch import Tensor, nn

from bench.reader.bert import Judge

INPUTS = ("ids", "mask", "types")


class VerdictOnly(nn.Module):
    """The judge without the span logits, which serve the training only."""

    def __init__(self, judge: Judge) -> None:
        super().__init__()
        self.judge = judge

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor) -> Tensor:
        logits: Tensor = self.judge(ids, mask, types)[0]
        return logits


def main(weights: Path, out: Path) -> None:
    judge = Judge()
    judge.load_state_dict(torch.load(weights, weights_only=True))
    example = tuple(torch.ones(2, 9, dtype=torch.long) for _ in INPUTS)
    axes = {name: {0: "pair", 1: "token"} for name in INPUTS} | {"logits": {0: "pair"}}
    with tempfile.TemporaryDirectory() as folder:
        exact = Path(folder, "exact.onnx")
        torch.onnx.export(
            VerdictOnly(judge).eval(), example, str(exact), input_names=list(INPUTS), output_names=["logits"],
            dynamic_axes=axes, opset_version=17, dynamo=False,
        )  # fmt: skip
        quantize_dynamic(
            exact, out, weight_type=QuantType.QInt8, per_channel=True,
            op_types_to_quantize=["MatMul", "Gather"], extra_options={"MatMulConstBOnly": True},
        )  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("weights", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    main(given.weights, given.out)
