# $1: 0 when nothing comes in its place.
if [ "$1" = 0 ] && [ -d /run/systemd/system ]; then
    systemctl disable --now gpuwire-server.service || :
fi
