# $1: 0 at a removal, not at an upgrade.
if [ "$1" = 0 ] && [ -d /run/systemd/system ]; then
    systemctl disable --now gpuwire-server.service || :
fi
