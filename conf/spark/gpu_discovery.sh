#!/usr/bin/env bash
# Spark's discovery contract (spark.{worker,executor}.resource.gpu.discoveryScript): one line of JSON that names the
# GPUs of this host. CUDA_VISIBLE_DEVICES, where a scheduler has set it, limits them.
set -euo pipefail

addresses=${CUDA_VISIBLE_DEVICES-}
if [[ -z ${CUDA_VISIBLE_DEVICES+set} ]]; then
  addresses=$(nvidia-smi --query-gpu=index --format=csv,noheader)
fi
printf '%s\n' "$addresses" | tr ',' '\n' | awk '
  NF { names = names (names == "" ? "" : ", ") "\"" $1 "\"" }
  END { printf "{\"name\": \"gpu\", \"addresses\": [%s]}\n", names }'
