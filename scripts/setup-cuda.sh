#!/usr/bin/env bash
# Installs the CUDA compiler into .cuda/ of this checkout, where build.rs looks for it: no root, no system
# CUDA, no GPU.
#
# CUDA 13.0 compiles code that drivers of the 580 series load. Its cuobjdump and nvdisasm are only published
# since 13.2, and read older code too.
set -euo pipefail
cd "$(dirname "$0")/.."

home=.cuda
wanted="nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-runtime==13.0.96
  nvidia-cuda-cccl==13.0.85 nvidia-cuda-cuobjdump==13.2.78 nvidia-cuda-nvdisasm==13.2.78"
if [ "$(cat "$home/wanted" 2>/dev/null)" = "$wanted" ]; then exit 0; fi

python3 -m venv "$home"
# shellcheck disable=SC2086 # One argument per package.
"$home/bin/pip" install --quiet --disable-pip-version-check $wanted
echo "$wanted" >"$home/wanted"
# Cargo runs the build script again.
touch build.rs
echo "CUDA compiler installed in $home/; build again to include the CUDA kernels"
