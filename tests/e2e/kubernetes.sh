#!/bin/bash
# kubernetes.sh FOLDER: builds the programs of Kubernetes 1.20, of which Debian has no package, from Debian's source.
# While it runs it needs 3 GB next to the folder.
set -euo pipefail
work="$1.partial"
mirror=$(awk '/^URIs:/ { print $2; exit }' /etc/apt/sources.list.d/debian.sources 2>/dev/null || true)
rm -rf "$work"
mkdir -p "$work/lists/partial" "$work/bin"
cd "$work"
echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ${mirror:-http://deb.debian.org/debian} bookworm main" \
  >sources.list
apt=(apt-get -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$work/lists"
  -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache=)
"${apt[@]}" update
"${apt[@]}" source --download-only kubernetes
tar -xzf kubernetes_*.orig.tar.gz
cd kubernetes-1.20.2
mkdir -p .go/src/k8s.io
ln -sfn ../../.. .go/src/k8s.io/kubernetes
export GOPATH="$PWD/.go" GOCACHE="$work/cache" HOME="$work" CGO_ENABLED=0
export KUBE_GIT_VERSION=v1.20.2 KUBE_GIT_COMMIT=debian KUBE_GIT_TREE_STATE=archive
programs=(kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet)
make GOLDFLAGS="-s -w" WHAT="${programs[*]/#/cmd/}"
mv "${programs[@]/#/_output/local/go/bin/}" "$work/bin/"
mv "$work/bin" "$1"
cd /
chmod -R u+w "$work"  # Go's module cache is read-only.
rm -rf "$work"
