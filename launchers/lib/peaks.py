"""Peak throughput of GPUs: operations per second, by card and by number format.

Figures are dense (without sparsity) at the boost clock. The comment of each row names the vendor's document. Where the document
prints a figure with 2:4 sparsity, marked by an asterisk, the row holds half of it. Where a card has several forms, the row's words
name the form.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Peak:
    """10^12 operations per second. None: the card's matrix units do not support the format."""

    fp32: float
    tf32: float | None
    half: float  # fp16, and bf16 where the card has it
    fp8: float | None
    has_bf16: bool = True


# "NVIDIA H100 Tensor Core GPU" data sheet, 2024 (figures with sparsity). Its H100 SXM is the one of the "NVIDIA H100 Tensor Core
# GPU Architecture" white paper V1.04, table 2, which gives TF32 as 494.7 and FP16 as 989.4 dense.
_H100_NVL = Peak(fp32=60, tf32=417.5, half=835, fp8=1671)
_H100_SXM = Peak(fp32=67, tf32=494.5, half=989, fp8=1979)

_V100 = Peak(fp32=15.7, tf32=None, half=125, fp8=None, has_bf16=False)

# Names of a part of a card: an instance (`NVIDIA A100-SXM4-40GB MIG 1g.5gb`) or a virtual GPU (`GRID A100-40C`). Its peak is a
# share that depends on how the card was cut. Also the 64 GB modules made for single machines, with other clocks and core counts.
_NOT_WHOLE = re.compile(r"MIG|\d+[ABCQ]|64GB")

# All words of a row must be in the name that the driver reports. The first row that fits counts: special forms of a card come
# before the general one, which is the SXM module.
PEAKS: dict[tuple[str, ...], Peak] = {
    # "NVIDIA GB200 NVL72" data sheet, with sparsity, for a superchip of two GPUs. The "NVIDIA Blackwell Architecture Technical
    # Brief" of March 2024 gives FP32 as 90; the data sheet is newer.
    ("GB200",): Peak(fp32=80, tf32=1250, half=2500, fp8=5000),
    # "NVIDIA HGX Platform" data sheet, HGX B200, with sparsity, for eight GPUs. The same brief and the "NVIDIA Blackwell" data
    # sheet give FP32 as 80 and TF32 as 1100. That is 2 % below half of FP16; on every card here TF32 is half of FP16.
    ("B200",): Peak(fp32=75, tf32=1125, half=2250, fp8=4500),
    # "NVIDIA GH200 Grace Hopper Superchip" data sheet, with sparsity.
    ("GH200",): Peak(fp32=67, tf32=494.5, half=990, fp8=1979),
    # "NVIDIA H200 Tensor Core GPU" data sheet, with sparsity: the cores of an H100 with more memory.
    ("H200", "NVL"): _H100_NVL,
    ("H200",): _H100_SXM,
    ("H100", "NVL"): _H100_NVL,
    # "NVIDIA H100 Tensor Core GPU" data sheet of 2022, with sparsity; the later data sheet lists the NVL instead.
    ("H100", "PCIe"): Peak(fp32=51, tf32=378, half=756, fp8=1513),
    ("H100",): _H100_SXM,
    # The vendor has no public data sheet. The figures are those that distributors print.
    ("H20",): Peak(fp32=44, tf32=74, half=148, fp8=296),
    # "NVIDIA A100 Tensor Core GPU" data sheet, 1758950-r4, June 2021: both forms, both sizes of memory.
    ("A100",): Peak(fp32=19.5, tf32=156, half=312, fp8=None),
    # "NVIDIA L40S" and "NVIDIA L40" data sheets: dense and sparse figures.
    ("L40S",): Peak(fp32=91.6, tf32=183, half=362, fp8=733),
    ("L40",): Peak(fp32=90.5, tf32=90.5, half=181, fp8=362),
    # "NVIDIA L4 Tensor Core GPU" data sheet, with sparsity.
    ("L4",): Peak(fp32=30.3, tf32=60, half=121, fp8=242),
    # "NVIDIA A40", "NVIDIA A30 Tensor Core GPU" and "NVIDIA A10 Tensor Core GPU" data sheets: dense and sparse figures.
    ("A40",): Peak(fp32=37.4, tf32=74.8, half=149.7, fp8=None),
    ("A30",): Peak(fp32=10.3, tf32=82, half=165, fp8=None),
    # "NVIDIA A10G Tensor Core GPU" data sheet, Amazon, 17 February 2022. Only Amazon's machines have it. It is not an A10.
    ("A10G",): Peak(fp32=35, tf32=35, half=70, fp8=None),
    ("A10",): Peak(fp32=31.2, tf32=62.5, half=125, fp8=None),
    # "NVIDIA V100 Tensor Core GPU" data sheet, 1165301-r5, January 2020: the SXM2 module, the card, the V100S. "NVIDIA DGX-2"
    # data sheet: 2 petaflops of 16 SXM3 modules. Other forms, such as the FHHL card, have other clocks.
    ("V100", "SXM2"): _V100,
    ("V100", "SXM3"): _V100,
    ("V100", "PCIE"): Peak(fp32=14, tf32=None, half=112, fp8=None, has_bf16=False),
    ("V100S",): Peak(fp32=16.4, tf32=None, half=130, fp8=None, has_bf16=False),
    # "NVIDIA T4 Tensor Core GPU" data sheet, 951643.
    ("T4",): Peak(fp32=8.1, tf32=None, half=65, fp8=None, has_bf16=False),
}


def peak_flops(name: str, precision: str) -> float | None:
    """Peak operations per second of one GPU; None where the card, or the precision on it, is not known. name: the driver's.

    A part of a card, such as a MIG instance, is not known either.
    precision: fp32, tf32, fp16, bf16, fp8. A card without tf32 multiplies in fp32, so its tf32 peak is its fp32 peak.
    """
    parts = name.replace("-", " ").split()
    if any(map(_NOT_WHOLE.fullmatch, parts)):
        return None
    peak = next((peak for words, peak in PEAKS.items() if all(word in parts for word in words)), None)
    if peak is None or (precision == "bf16" and not peak.has_bf16):
        return None
    kinds = {"fp32": peak.fp32, "tf32": peak.tf32 or peak.fp32, "fp16": peak.half, "bf16": peak.half, "fp8": peak.fp8}
    found = kinds[precision]
    return None if found is None else found * 1e12
