#!/usr/bin/env bash
# Installs the Debian packages that gpuwire is built with, when they are missing. Prints nothing when all are there.
# usage: install_packages.sh [--build-only]: with it none of those that only some tests, plug-ins and packages need.
set -eu
build_only=""
case ${1:-} in
  "") ;;
  --build-only) build_only=1 ;;
  *) echo "usage: $0 [--build-only]" >&2; exit 2 ;;
esac
wanted="g++ cmake ninja-build python3 ccache capnproto libcapnp-dev libboost-dev libssl-dev zlib1g-dev doctest-dev
  libspdlog-dev
libfmt-dev libcli11-dev libtomlplusplus-dev libexpected-dev liblz4-dev libzstd-dev libxxhash-dev
  nlohmann-json3-dev libseccomp-dev prometheus-cpp-dev openssl python3-yaml"

# For gpuwire-slurm and its tests: 16 s, 20 MB. Daemons come with them, so only where no service manager would start
# these.
optional="libslurm-dev slurmctld slurmd slurm-client munge"

# For the RDMA plug-in (docs/rdma.md): 6 MB.
rdma="libucx-dev"

# For the RPM packages of `make packages` and their test: 6 MB.
rpm="rpm"

[ -z "$build_only" ] || optional="" rdma="" rpm=""

# lacking PACKAGE...: those that are not installed.
lacking() {
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || printf ' %s' "$package"
  done
}

missing=$(lacking $wanted)
missing_optional=$(lacking $optional)
missing_rdma=$(lacking $rdma)
missing_rpm=$(lacking $rpm)
if [ -n "$missing_rdma" ] && [ "$(id -u)" != 0 ]; then
  echo "without RDMA, which needs:$missing_rdma" >&2
  missing_rdma=""
fi
if [ -n "$missing_rpm" ] && [ "$(id -u)" != 0 ]; then
  echo "without RPM packages, which need:$missing_rpm" >&2
  missing_rpm=""
fi
if [ -n "$missing_optional" ] && { [ "$(id -u)" != 0 ] || [ -d /run/systemd/system ]; }; then
  echo "without gpuwire-slurm, which needs:$missing_optional" >&2
  missing_optional=""
fi
[ -z "$missing$missing_optional$missing_rdma$missing_rpm" ] && exit 0

if [ -n "$missing" ] && [ "$(id -u)" != 0 ]; then
  echo "gpuwire needs these Debian packages:$missing" >&2
  echo "install them with: sudo apt-get install$missing" >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive

# install OPTIONS PACKAGE...
install() {
  apt-get install -y -q "$@" >/dev/null 2>&1 ||
    { apt-get update -q >/dev/null && apt-get install -y -q "$@" >/dev/null; }
}

if [ -n "$missing" ]; then
  echo "installing Debian packages:$missing"
  install $missing
fi
if [ -n "$missing_optional" ]; then
  echo "installing Debian packages:$missing_optional"
  install --no-install-recommends $missing_optional || echo "without gpuwire-slurm: they could not be installed" >&2
fi
if [ -n "$missing_rdma" ]; then
  echo "installing Debian packages:$missing_rdma"
  install --no-install-recommends $missing_rdma || echo "without RDMA: they could not be installed" >&2
fi
if [ -n "$missing_rpm" ]; then
  echo "installing Debian packages:$missing_rpm"
  install --no-install-recommends $missing_rpm || echo "without RPM packages: rpm could not be installed" >&2
fi
