#!/bin/sh
# usage: installed_size.sh PACKAGE COMPRESSION: packs a .deb anew, with the Installed-Size that Debian defines (policy
# 5.6.20 and dpkg-gencontrol: each file and link in whole KiB, each folder 1 KiB). The script changes nothing else.
set -eu
package=$1 compression=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
dpkg-deb --raw-extract "$package" "$folder/tree"
kib=$(find "$folder/tree" -mindepth 1 -path "$folder/tree/DEBIAN" -prune -o -printf '%y %s\n' |
  awk '{ kib += $1 == "f" || $1 == "l" ? int(($2 + 1023) / 1024) : 1 } END { print kib }')
sed -i "s/^Installed-Size: .*/Installed-Size: $kib/" "$folder/tree/DEBIAN/control"
dpkg-deb --root-owner-group --uniform-compression -Z "$compression" --build "$folder/tree" "$folder/new.deb" >/dev/null
cat "$folder/new.deb" >"$package"
