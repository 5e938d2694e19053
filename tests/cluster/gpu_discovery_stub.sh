#!/usr/bin/env bash
# A stub of conf/spark/gpu_discovery.sh for machines without a GPU: the devices that the test names in STUB_GPUS.
printf '{"name": "gpu", "addresses": ["%s"]}\n' "${STUB_GPUS//,/\", \"}"
