"""Kernels compile for GPUs that this machine lacks, and fit into their shared memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SHARED = {86: 99, 89: 99, 80: 163, 90: 227}


@pytest.mark.long
def test_kernels_compile_and_fit(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "tests.ops.fused.compile_kernels", *map(str, SHARED)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert list(found) == list(map(str, SHARED))
    for capability, blocks in found.items():
        assert {"power_sums_fwd_kernel", "branch_bwd_kernel", "output_fwd_kernel"} < set(blocks["bfloat16"])
        names = ("sums_fwd", "apply_fwd", "theta_bwd", "factors_bwd")
        assert set(blocks["operator"]) == {f"operator_{name}_kernel" for name in names}
        assert max(shared for kernels in blocks.values() for shared in kernels.values()) <= SHARED[int(capability)]
    assert all("weight_bwd_kernel" in found[capability]["contiguous, not aligned"] for capability in ("86", "90"))
    assert {"dz_bwd_kernel", "response_bwd_kernel"} < set(found["86"]["one group, float16"])
    assert {"dz_bwd_kernel", "response_bwd_kernel"} < set(found["86"]["contiguous, one group"])
    tiles = [blocks["bfloat16"]["power_sums_fwd_kernel"] for blocks in found.values()]
    assert tiles == sorted(tiles)  # the larger memory of 8.0 and 9.0 is used
