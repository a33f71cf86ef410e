#!/usr/bin/env bash
# Installs the Debian packages that gpuwire is built with, when they are missing. Prints nothing when all are there.
set -eu
wanted="g++ cmake ninja-build python3 ccache capnproto libcapnp-dev libboost-dev libssl-dev zlib1g-dev doctest-dev libspdlog-dev
libfmt-dev libcli11-dev libtomlplusplus-dev libexpected-dev liblz4-dev libzstd-dev libxxhash-dev nlohmann-json3-dev libseccomp-dev prometheus-cpp-dev openssl"

missing=""
for package in $wanted; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing="$missing $package"
done
[ -z "$missing" ] && exit 0

if [ "$(id -u)" != 0 ]; then
  echo "gpuwire needs these Debian packages:$missing" >&2
  echo "install them with: sudo apt-get install$missing" >&2
  exit 1
fi
echo "installing Debian packages:$missing"
export DEBIAN_FRONTEND=noninteractive
apt-get install -y -q $missing >/dev/null 2>&1 || { apt-get update -q >/dev/null && apt-get install -y -q $missing >/dev/null; }
