"""The table of GPUs: dense peaks, bandwidths and ridge points."""

import pytest

from servelab.costs import GPU_SPECS


@pytest.mark.parametrize(
    ("name", "bandwidth_gbps", "tflops", "ridge"),
    [
        ("A100 80GB SXM", 2_039, 312, 153),
        ("H100 SXM", 3_350, 989.4, 295),
        ("H200 SXM", 4_800, 989.4, 206),
        ("L4", 300, 121, 403),
        ("T4", 320, 65, 203),
        ("RTX 4090", 1_008, 165.2, 164),
    ],
)
def test_ceilings(name, bandwidth_gbps, tflops, ridge):
    roofline = GPU_SPECS[name].roofline()
    assert roofline.bandwidth_bytes_per_s == bandwidth_gbps * 1e9
    assert roofline.flops_per_s == pytest.approx(tflops * 1e12)
    assert round(roofline.ridge_point) == ridge
    assert GPU_SPECS[name].source


def test_a_t4_has_no_bfloat16():
    assert GPU_SPECS["T4"].default_dtype == "float16"
    with pytest.raises(ValueError, match="expected a dtype of T4 \\(float16\\), got 'bfloat16'"):
        GPU_SPECS["T4"].roofline("bfloat16")


def test_fp8_runs_at_twice_the_16_bit_peak():
    spec = GPU_SPECS["H100 SXM"]
    assert spec.roofline("fp8").flops_per_s == 2 * spec.roofline().flops_per_s
