#!/usr/bin/env bash
# Prints prometheusrule.yaml, the rule files as resources of the Prometheus operator:
#   deploy/prometheus/prometheusrule.sh > deploy/prometheus/prometheusrule.yaml
set -euo pipefail
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")"

echo "# Made by prometheusrule.sh from the rule files in this folder: change those."
for name in slo alerts; do
  cat <<END
---
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: aft-serve-$name
  labels:
    app.kubernetes.io/name: aft-serve
spec:
END
  sed 's/^./  &/' "$name.rules.yml"
done
