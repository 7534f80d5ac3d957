#!/usr/bin/env bash
# Init script of the clusters of databricks.yml: installs the locked packages and the project into the runtime's Python.
# The runtime has Spark and Delta already.
set -euo pipefail
lock=$(mktemp)
awk '/^[a-z]/ { wanted = !/^(pyspark|py4j|delta-spark)==/ } wanted' "$PROJECT/requirements.lock" > "$lock"
pip=(/databricks/python/bin/python -m pip --quiet install --no-deps)
"${pip[@]}" --require-hashes -r "$lock"
"${pip[@]}" "$PROJECT"
