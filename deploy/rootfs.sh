#!/bin/bash
# rootfs.sh FOLDER PROGRAM...: the file system of the server's image but for /opt/aft: these programs, the libraries
# that they load, /etc/aft, and what libc looks for. With it go Debian's licences, and the packages' entries in
# dpkg's form for images without dpkg (status.d), which scanners read. The stage `runtime` has added those of headers
# that are compiled in.
set -euo pipefail
root=$1
shift
mkdir -p "$root"/{etc,tmp,var/lib/dpkg}
cp -a /var/lib/dpkg/status.d "$root/var/lib/dpkg/"
cp -a /etc/aft /etc/passwd /etc/group /etc/nsswitch.conf /etc/os-release "$root/etc/"
chmod 1777 "$root/tmp"
packages=(base-files)
libraries=$(ldd "$@")
# A wrong list of packages must not get as far as a cluster.
[[ $libraries != *'not found'* ]] || { echo "$libraries" >&2; exit 1; }
for file in "$@" $(grep -o '/[^ ]*' <<<"$libraries" | grep -v ':$' | sort -u); do
  [[ $file != /opt/aft/* ]] || continue
  mkdir -p "$root${file%/*}"
  cp -L "$file" "$root$file"
  packages+=("$(dpkg -S "*/${file##*/}" | sed 's/:.*//' | head -n 1)")
done
for package in $(printf '%s\n' "${packages[@]}" | sort -u); do
  dpkg-query -s "$package" >"$root/var/lib/dpkg/status.d/$package"
done
cp -L --parents /usr/share/doc/*/copyright "$root"
# `aftctl chat` reads characters beyond ASCII with this locale.
cp -L --parents /usr/lib/locale/C.utf8/LC_CTYPE "$root"
