"""Kernels compile for GPUs that this machine lacks, and fit into their shared memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SHARED = {80: 163, 86: 99, 89: 99}


@pytest.mark.long
@pytest.mark.parametrize("capability", SHARED)
def test_kernels_compile_and_fit(capability, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "tests.ops.fused.compile_kernels", str(capability)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert {"bfloat16", "one group, float16", "float32", "operator", "operator, channels last"} == set(found)
    assert {"power_sums_fwd_kernel", "branch_bwd_kernel", "output_fwd_kernel"} < set(found["bfloat16"])
    assert {f"operator_{name}_kernel" for name in ("sums_fwd", "apply_fwd", "theta_bwd", "factors_bwd")} == set(
        found["operator"]
    )
    assert max(shared for kernels in found.values() for shared in kernels.values()) <= SHARED[capability]
