#!/usr/bin/env bash
# make packages: builds the packages in build/packages.
# usage: make_packages.sh [--quick]: builds nothing, and packs the present build with little compression.
set -eu
cd "$(dirname "$0")/.."
build=${GPUWIRE_BUILD:-build}
packages=$build/packages

settings=""
level=9
if [ "${1:-}" = --quick ]; then
  settings="-D CPACK_DEBIAN_COMPRESSION_TYPE=gzip -D CPACK_RPM_COMPRESSION_TYPE=gzip"
  level=1
else
  cmake/install_packages.sh
  [ -f "$build/build.ninja" ] || cmake --preset release
  ninja -C "$build" gpuwire_installed
fi
log=$build/packages.log

# logged COMMAND...: shows the command's output if it fails.
logged() {
  "$@" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
}

# pack GENERATOR [SETTINGS...]
pack() {
  local generator=$1
  shift
  echo "packing: $generator $*"
  logged cpack --config "$build/CPackConfig.cmake" -G "$generator" $settings "$@"
}

# cached NAME: prints a value of the configured build.
cached() { sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt"; }

rm -rf "$packages"
pack DEB
for of in client server; do pack TGZ -D GPUWIRE_TARBALL=$of; done
if command -v rpmbuild >/dev/null; then
  # rpmbuild takes no path with a space.
  rpm=$(mktemp -d)
  trap 'rm -rf "$rpm"' EXIT
  pack RPM -B "$rpm"
  mv "$rpm"/*.rpm "$packages"
else echo "without RPM packages: rpmbuild is missing (Debian package rpm)" >&2
fi
rm -rf "$packages/_CPack_Packages"

echo "packing: wheel"
installed=$(mktemp -d)
trap 'rm -rf "$installed" "${rpm:-}"' EXIT
logged cmake --install "$build" --component client --strip --prefix "$installed"
python3 packaging/python/make_wheel.py --client "$installed" --forwarders "$build/wheel" --level $level \
  --version "$(cached CMAKE_PROJECT_VERSION)" --glibc "$(cached GPUWIRE_OLDEST_GLIBC)" --output "$packages"
ls -l "$packages"
