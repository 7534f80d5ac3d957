#!/usr/bin/env bash
# Installs the project on each machine of an EMR cluster, with a Spark of its own. $1: the project's archive on S3.
set -euo pipefail
folder=/opt/offsets-pipeline
sudo dnf install --assumeyes make python3.11
sudo mkdir -p "$folder"
aws s3 cp "$1" - | sudo tar --extract --gzip --directory "$folder"
sudo make --directory "$folder" s3 PYTHON=python3.11
